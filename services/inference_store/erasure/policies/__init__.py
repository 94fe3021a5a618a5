"""Retention policies: what is kept how long, by the rules of a model, its project and all."""

from .chain import DEFAULT, LEVELS, Chain, Decider, Level, Limit, LimitOf, Of, chain_of
from .chains import by_model, chain, deciding, limited_by_bytes, wider
from .cutoffs import KEPT, Cutoffs, Scope
from .moving import apply_moved, coming, deciding_project, moving, standing_of, undercut
from .rules import MOST_RULES, Ages, Bounds, Keep, RetentionPolicy, Rule
from .saving import AskedRule, Resolved, models_of, resolve
from .setting import apply_revoked, apply_set, now, put, revoking, setting
from .stored import Standing, Version, history, in_force, standing

__all__ = [
    "DEFAULT",
    "KEPT",
    "LEVELS",
    "MOST_RULES",
    "Ages",
    "AskedRule",
    "Bounds",
    "Chain",
    "Cutoffs",
    "Decider",
    "Keep",
    "Level",
    "Limit",
    "LimitOf",
    "Of",
    "Resolved",
    "RetentionPolicy",
    "Rule",
    "Scope",
    "Standing",
    "Version",
    "apply_moved",
    "apply_revoked",
    "apply_set",
    "by_model",
    "chain",
    "chain_of",
    "coming",
    "deciding",
    "deciding_project",
    "history",
    "in_force",
    "limited_by_bytes",
    "models_of",
    "moving",
    "now",
    "put",
    "resolve",
    "revoking",
    "setting",
    "standing",
    "standing_of",
    "undercut",
    "wider",
]
