"""Decides predicates without names during the check: they need no inference."""

from dataclasses import fields
from typing import Any, Final

from . import typed
from .evaluate import evaluate
from .facts import Facts
from .typed import And, Constant, Fixed, Not, Or, Predicate

_NOBODY: Final = Facts()
_OVER_VALUES: Final = (
    typed.Compared,
    typed.Between,
    typed.Among,
    typed.Like,
    typed.Missing,
    typed.Holds,
    typed.Calculated,
    typed.Folded,
    typed.Sets,
)


def settle(predicate: Predicate) -> Predicate:
    """Return the predicate, or `Fixed` if its value is the same for every inference."""
    match predicate:
        case And(parts):
            return _joined(parts, And, deciding=False)
        case Or(parts):
            return _joined(parts, Or, deciding=True)
        case Not(Fixed(value)):
            return Fixed(None if value is None else not value)
    return Fixed(evaluate(predicate, _NOBODY)) if _is_constant(predicate) else predicate


def _joined(parts: tuple[Predicate, ...], make: type[And | Or], *, deciding: bool) -> Predicate:
    """Join the parts without those that change nothing; return `Fixed` if one part decides."""
    if any(part == Fixed(deciding) for part in parts):
        return Fixed(deciding)
    rest = tuple(part for part in parts if part != Fixed(not deciding))
    if not rest:
        return Fixed(not deciding)
    return rest[0] if len(rest) == 1 else make(rest)


def _is_constant(thing: Any) -> bool:
    """Check whether it is a constant, a text, or consists of these."""
    if isinstance(thing, tuple):
        return all(map(_is_constant, thing))
    if isinstance(thing, _OVER_VALUES):
        return all(_is_constant(getattr(thing, item.name)) for item in fields(thing))
    return isinstance(thing, Constant | str)
