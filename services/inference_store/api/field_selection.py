"""Chooses the fields of an inference to return: all of them, or those chosen by name."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from inference_store.export.fixed_columns import DISTANCE
from inference_store.inference.errors import Fault, Invalid
from inference_store.inference.nearest import nearest
from inference_store.query.sort import EXAMPLE

from .schemas.chosen_fields import FIELDS, PARTS
from .typed_metadata import MetadataAs

_METADATA, _PREDICTIONS, _URLS = "metadata", "predictions", "urls"
_LIST = "/reference"
"""The page of the OpenAPI."""


@dataclass(frozen=True, slots=True)
class FieldSelection:
    """The chosen fields. `fields` None: all; else the chosen parts of each field, all if empty."""

    include: frozenset[str]
    fields: dict[str, frozenset[str]] | None
    metadata_as: MetadataAs = "list"

    @classmethod
    def of(
        cls,
        fields: Sequence[str] | None,
        include: Collection[str],
        metadata_as: MetadataAs = "list",
    ) -> "FieldSelection":
        """Read `fields` and `include` of a body. Raises Invalid for an unknown name."""
        if fields is None:
            return cls(frozenset(include), None, metadata_as)
        parts_by_field: dict[str, set[str]] = {}
        whole = set(include)
        for number, name in enumerate(fields):
            field, _, part = name.partition(".")
            _refuse_unknown(number, name, field, part)
            parts_by_field.setdefault(field, set()).add(part)
            whole |= set() if part else {field}
        chosen = {name: frozenset(parts) for name, parts in parts_by_field.items()}
        chosen |= dict.fromkeys(whole, frozenset[str]())
        return cls(frozenset(chosen) & {_METADATA, _PREDICTIONS, _URLS}, chosen, metadata_as)

    def pick(self, item: dict[str, Any]) -> dict[str, Any]:
        """Return the chosen parts of an inference for JSON."""
        if self.fields is None:
            return item
        return {
            name: _select_parts(name, value, self.fields[name])
            for name, value in item.items()
            if name in self.fields
        }

    def find_parts(self, field: str) -> frozenset[str]:
        """Return the chosen parts of a field; none: all of it."""
        return frozenset() if self.fields is None else self.fields.get(field, frozenset())

    def refuse_distance(self) -> None:
        """Raise Invalid if the distance is chosen, and no page is sorted by it."""
        if DISTANCE in (self.fields or {}):
            message = f"only pages sorted by distance have it, as in {EXAMPLE}"
            raise Invalid(f"{DISTANCE}: {message}.", faults=[Fault("fields", message, [EXAMPLE])])


def _select_parts(field: str, value: Any, parts: Collection[str]) -> Any:
    """Return a field's value reduced to the chosen parts."""
    if not parts or value is None:
        return value
    if isinstance(value, dict) and field == _METADATA:
        return {key: value[key] for key in value if any(is_within(p, key) for p in parts)}
    if field == _METADATA:
        return [entry for entry in value if any(is_within(p, str(entry["key"])) for p in parts)]
    if field == _URLS:
        return {name: value[name] for name in value if name in parts}
    return [{name: element[name] for name in element if name in parts} for element in value]


def is_within(name: str, key: str) -> bool:
    """Return whether a name is a key, or a path into its value: `a.b` and `a[]` are within `a`."""
    return name == key or name.startswith((f"{key}.", f"{key}["))


def _refuse_unknown(number: int, name: str, field: str, part: str) -> None:
    if field == _METADATA and (part or name == field):
        return
    parts = [f"{field}.{part_name}" for part_name in PARTS.get(field, ())] if part else []
    known_names = parts or list(FIELDS)
    if name not in known_names:
        near = nearest(name, known_names, limit=3)
        hint = f"the nearest are {', '.join(near)}" if near else "none is spelt alike"
        message = f"there is no field {name!r}; {hint}; the page {_LIST} of the api lists all"
        message += "" if part else "; a metadata key is written metadata.KEY"
        known = tuple(dict.fromkeys((*near, *known_names)))
        faults = [Fault(f"fields[{number}]", message, known)]
        raise Invalid(f"{message[0].upper()}{message[1:]}.", faults=faults)
