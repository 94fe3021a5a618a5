"""Predicates that need no inference: they are decided when they are checked."""

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


def settled(predicate: Predicate) -> Predicate:
    """The same, or `Fixed` where it is the same of every inference."""
    match predicate:
        case And(parts):
            return _joined(parts, And, deciding=False)
        case Or(parts):
            return _joined(parts, Or, deciding=True)
        case Not(Fixed(found)):
            return Fixed(None if found is None else not found)
    return Fixed(evaluate(predicate, _NOBODY)) if _is_constant(predicate) else predicate


def _joined(parts: tuple[Predicate, ...], made: type[And | Or], *, deciding: bool) -> Predicate:
    """Without the parts that change nothing; the one that decides alone."""
    if any(part == Fixed(deciding) for part in parts):
        return Fixed(deciding)
    left = tuple(part for part in parts if part != Fixed(not deciding))
    if not left:
        return Fixed(not deciding)
    return left[0] if len(left) == 1 else made(left)


def _is_constant(thing: Any) -> bool:
    """A constant, text, or something made of them."""
    if isinstance(thing, tuple):
        return all(map(_is_constant, thing))
    if isinstance(thing, _OVER_VALUES):
        return all(_is_constant(getattr(thing, each.name)) for each in fields(thing))
    return isinstance(thing, Constant | str)
