"""Refuses values that a name never has.

A value with several spellings is converted to the stored one, so that SQL and Python need not
know of the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final
from uuid import UUID

from inference_store.inference.events import data_hash_of
from inference_store.inference.metadata import COORDINATES
from inference_store.inference.nearest import nearest, shortened
from inference_store.inference.task_types import TASK_TYPES, task_type_named
from inference_store.query.cql2.tree import Node

from .filter_check import FilterCheck
from .map_bounds import refuse_off_map
from .refusals import impossible
from .typed import Constant, Distance, Metadata, Property, Value

_TURNED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_AT_MOST: Final = frozenset({"<", "<=", "=", "between"})
_HEXADECIMAL: Final = frozenset("0123456789abcdefABCDEF")


@dataclass(frozen=True, slots=True)
class Form:
    """The texts that a property can have.

    `stored`: converts a text to the stored spelling; None: it is not valid. `parts`: converts a
    text that need not be valid: a pattern, or the bound of an order. `refusal`: returns the message
    and the suggestions for an invalid text.
    """

    stored: Callable[[str], str | None]
    parts: Callable[[str], str]
    refusal: Callable[[str], tuple[str, Sequence[str]]]


def as_stored(
    op: str, nodes: Sequence[Node], values: tuple[Value, ...], checking: FilterCheck
) -> tuple[Value, ...]:
    """Return the values of a comparison, with literals in the stored spelling.

    Raises ImpossibleComparison for a value that no inference has, unless the filter was saved
    before.
    """
    for name in values:
        if isinstance(name, Property) and name.name in FORMS:
            form = FORMS[name.name]
            pairs = zip(nodes, values, strict=True)
            values = tuple(_formed(op, form, node, side, checking) for node, side in pairs)
        elif isinstance(name, Metadata) and name.kind == "number" and name.name in COORDINATES:
            _refuse_degrees(name, nodes, values, checking)
        elif isinstance(name, Distance) and not checking.is_saved:
            _refuse_below_nothing(op, nodes, values, checking)
    return values


def _formed(op: str, form: Form, node: Node, value: Value, checking: FilterCheck) -> Value:
    if not isinstance(value, Constant):
        return value
    text = str(value.value)
    stored = form.stored(text) if op != "like" else None
    if stored is None and op in ("=", "<>") and not checking.is_saved:
        raise impossible(node, checking.source, *form.refusal(text))
    return replace(value, value=form.parts(text) if stored is None else stored)


def _refuse_degrees(
    name: Metadata, nodes: Sequence[Node], values: Sequence[Value], checking: FilterCheck
) -> None:
    for node, value in zip(nodes, values, strict=True):
        if isinstance(value, Constant) and not checking.is_saved:
            refuse_off_map(name.name, value, node, checking)


def _refuse_below_nothing(
    op: str, nodes: Sequence[Node], values: Sequence[Value], checking: FilterCheck
) -> None:
    """Raise ImpossibleComparison if a distance would have to be less than 0."""
    # The bound that the distance must not exceed: the last value, or the one before it.
    if isinstance(values[0], Distance):
        index = -1
    elif isinstance(values[1], Distance):
        index, op = 0, _TURNED.get(op, op)
    else:
        return  # the upper bound itself
    bound = values[index]
    if not isinstance(bound, Constant) or not isinstance(bound.value, Decimal):
        return
    if op in _AT_MOST and (bound.value < 0 or (op == "<" and bound.value == 0)):
        message = "a distance is 0 metres or more: no inference is so near"
        raise impossible(nodes[index], checking.source, message)


def _no_hash(text: str) -> tuple[str, Sequence[str]]:
    message = (
        f"a data_hash has 64 hexadecimal digits, the SHA-256 of the datum: {_describe_text(text)}"
    )
    if text and len(text) < 64 and _HEXADECIMAL.issuperset(text):
        message += f"; what begins so is found by LIKE '{text}%'"
    return message, ()


def _describe_text(text: str) -> str:
    digits = _HEXADECIMAL.issuperset(text)
    return f"{shortened(text)} has {len(text)}" if digits else f"{shortened(text)} is none"


def _uid(text: str) -> str | None:
    try:
        return str(UUID(text))
    except ValueError:
        return None


def _no_uid(text: str) -> tuple[str, Sequence[str]]:
    message = (
        f"{shortened(text)} is no uid, which is a UUID such as"
        " 019ac3f2-7c00-8123-9abc-0123456789ab; a client's own id is found by inference_id"
    )
    return message, ("inference_id",)


def _task_type(text: str) -> str | None:
    task_type = task_type_named(text)
    return None if task_type is None else task_type.name


def _no_task_type(text: str) -> tuple[str, Sequence[str]]:
    near = nearest(text, TASK_TYPES)
    suggestions = list(dict.fromkeys([*near, *TASK_TYPES]))
    hint = f"the nearest are {', '.join(near)}; " if near else ""
    hint += f"known are {', '.join(TASK_TYPES)}"
    return f"there is no task type {shortened(text)}; {hint}", suggestions


FORMS: Final[Mapping[str, Form]] = {
    "data_hash": Form(data_hash_of, str.lower, _no_hash),
    "uid": Form(_uid, str.lower, _no_uid),
    "task_type": Form(_task_type, str, _no_task_type),
}
"""The form of a property's texts, by its name."""
