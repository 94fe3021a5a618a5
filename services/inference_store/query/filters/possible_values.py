"""Values that a name never has: refused by name where they are compared with it. What has several
spellings is compared in the one that is stored, so that SQL and Python need not know of it."""

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

from .checking import Checking
from .on_the_map import refuse_off_map
from .refusals import impossible
from .typed import Constant, Distance, Metadata, Property, Value

_TURNED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_AT_MOST: Final = frozenset({"<", "<=", "=", "between"})
_HEXADECIMAL: Final = frozenset("0123456789abcdefABCDEF")


@dataclass(frozen=True, slots=True)
class Form:
    """What the texts of a property are. `stored`: the one that is stored of a text, None: none is.

    `parts`: of what is not a whole one, a pattern or the bound of an order. `refusal`: of a text
    that is none, what is said and what is known.
    """

    stored: Callable[[str], str | None]
    parts: Callable[[str], str]
    refusal: Callable[[str], tuple[str, Sequence[str]]]


def as_stored(
    op: str, nodes: Sequence[Node], values: tuple[Value, ...], checking: Checking
) -> tuple[Value, ...]:
    """The values of a comparison, what is written out among them as it is stored.

    Raises ImpossibleComparison for what no inference has; not of a filter that is kept.
    """
    for name in values:
        if isinstance(name, Property) and name.name in FORMS:
            form = FORMS[name.name]
            pairs = zip(nodes, values, strict=True)
            values = tuple(_formed(op, form, node, each, checking) for node, each in pairs)
        elif isinstance(name, Metadata) and name.kind == "number" and name.name in COORDINATES:
            _refuse_degrees(name, nodes, values, checking)
        elif isinstance(name, Distance) and not checking.kept:
            _refuse_below_nothing(op, nodes, values, checking)
    return values


def _formed(op: str, form: Form, node: Node, value: Value, checking: Checking) -> Value:
    if not isinstance(value, Constant):
        return value
    text = str(value.value)
    found = form.stored(text) if op != "like" else None
    if found is None and op in ("=", "<>") and not checking.kept:
        raise impossible(node, checking.source, *form.refusal(text))
    return replace(value, value=form.parts(text) if found is None else found)


def _refuse_degrees(
    name: Metadata, nodes: Sequence[Node], values: Sequence[Value], checking: Checking
) -> None:
    for node, value in zip(nodes, values, strict=True):
        if isinstance(value, Constant) and not checking.kept:
            refuse_off_map(name.name, value, node, checking)


def _refuse_below_nothing(
    op: str, nodes: Sequence[Node], values: Sequence[Value], checking: Checking
) -> None:
    """Raise ImpossibleComparison where a distance would have to be less than 0."""
    # The bound that it must not exceed: of BETWEEN the upper one, or what lies above it.
    if isinstance(values[0], Distance):
        place = -1
    elif isinstance(values[1], Distance):
        place, op = 0, _TURNED.get(op, op)
    else:
        return  # the upper bound itself
    bound = values[place]
    if not isinstance(bound, Constant) or not isinstance(bound.value, Decimal):
        return
    if op in _AT_MOST and (bound.value < 0 or (op == "<" and bound.value == 0)):
        message = "a distance is 0 metres or more: no inference is so near"
        raise impossible(nodes[place], checking.source, message)


def _no_hash(text: str) -> tuple[str, Sequence[str]]:
    message = f"a data_hash has 64 hexadecimal digits, the SHA-256 of the datum: {_told(text)}"
    if text and len(text) < 64 and _HEXADECIMAL.issuperset(text):
        message += f"; what begins so is found by LIKE '{text}%'"
    return message, ()


def _told(text: str) -> str:
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
    found = task_type_named(text)
    return None if found is None else found.name


def _no_task_type(text: str) -> tuple[str, Sequence[str]]:
    near = nearest(text, TASK_TYPES)
    known = list(dict.fromkeys([*near, *TASK_TYPES]))
    said = f"the nearest are {', '.join(near)}; " if near else ""
    said += f"known are {', '.join(TASK_TYPES)}"
    return f"there is no task type {shortened(text)}; {said}", known


FORMS: Final[Mapping[str, Form]] = {
    "data_hash": Form(data_hash_of, str.lower, _no_hash),
    "uid": Form(_uid, str.lower, _no_uid),
    "task_type": Form(_task_type, str, _no_task_type),
}
"""By the property's name."""
