"""Retention policies: what is kept how long, by the rules of a model, its project and all."""

from .chain import DEFAULT, LEVELS, Chain, Decider, Level, Limit, LimitOf, Of, chain_of
from .chains import by_model, chain, wider
from .cutoffs import KEPT, Cutoffs, Scope
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
    "apply_revoked",
    "apply_set",
    "by_model",
    "chain",
    "chain_of",
    "history",
    "in_force",
    "models_of",
    "now",
    "put",
    "resolve",
    "revoking",
    "setting",
    "standing",
    "wider",
]
