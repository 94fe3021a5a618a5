"""Retention policies: how long data is kept, by the rules of a model, its project and the store."""

from .changes import (
    apply_revoked,
    apply_set,
    describe_change,
    describe_revocation,
    read_now,
    set_policy,
)
from .cutoffs import KEEP_ALL, Cutoffs, ErasureScope, find_earlier
from .effective_policies import (
    add_coming,
    build_deciding_project,
    build_effective_policy,
    find_effective_policies,
    list_owners,
)
from .effective_policy import (
    DEFAULT,
    LEVELS,
    EffectivePolicy,
    EffectiveRule,
    LevelName,
    PolicyOwner,
    RetentionLimit,
    merge_policies,
)
from .moves import (
    apply_moved,
    describe_move,
    find_policy_states,
    is_minimum_undercut,
)
from .policy_versions import (
    PolicyState,
    PolicyVersion,
    apply_pending,
    find_in_force,
    find_pending,
    find_state,
    list_versions,
)
from .resolution import (
    RequestedRule,
    ResolvedPolicy,
    list_models,
    resolve_policy,
    warn_of_empty_project,
)
from .rules import MOST_RULES, Ages, Bounds, Keep, RetentionPolicy, Rule

__all__ = [
    "DEFAULT",
    "KEEP_ALL",
    "LEVELS",
    "MOST_RULES",
    "Ages",
    "Bounds",
    "Cutoffs",
    "EffectivePolicy",
    "EffectiveRule",
    "ErasureScope",
    "Keep",
    "LevelName",
    "PolicyOwner",
    "PolicyState",
    "PolicyVersion",
    "RequestedRule",
    "ResolvedPolicy",
    "RetentionLimit",
    "RetentionPolicy",
    "Rule",
    "add_coming",
    "apply_moved",
    "apply_pending",
    "apply_revoked",
    "apply_set",
    "build_deciding_project",
    "build_effective_policy",
    "describe_change",
    "describe_move",
    "describe_revocation",
    "find_earlier",
    "find_effective_policies",
    "find_in_force",
    "find_pending",
    "find_policy_states",
    "find_state",
    "is_minimum_undercut",
    "list_models",
    "list_owners",
    "list_versions",
    "merge_policies",
    "read_now",
    "resolve_policy",
    "set_policy",
    "warn_of_empty_project",
]
