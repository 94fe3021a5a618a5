"""Resolves the names of a request to operands; an unknown name is refused before any SQL runs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index import key_registry
from inference_store.index.key_registry import FROM_TEXT, KeySeen
from inference_store.inference.errors import Fault, ImpossibleComparison, Invalid, UnknownKey
from inference_store.inference.metadata import TYPE_NAMES, Family, type_named
from inference_store.inference.nearest import nearest
from inference_store.inference.plural import counted
from inference_store.query.preparation import UnknownKeys
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property

from .aggregation import Name
from .functions import Kind
from .operand import LABEL, Operand

_INFERENCE, _METADATA, _PREDICTION = "inference.", "metadata.", "prediction."
_FAMILIES: Final[tuple[Kind, ...]] = ("number", "string", "bool", "timestamp")


@dataclass(slots=True)
class Names:
    """Resolves names for several models, and remembers the metadata keys that were looked up."""

    models: Sequence[int]
    unknown_keys: UnknownKeys
    keys: dict[str, KeySeen | None] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    """Each warning once, in order, however many measures cause it."""

    async def operand(
        self, connection: AsyncConnection, name: Name, kinds: Collection[Kind]
    ) -> Operand:
        """Return the operand of a name; a key of several types is read as one of `kinds`, if any.

        Raises Invalid, UnknownKey, ImpossibleComparison.
        """
        text = name.text
        if text.startswith(_METADATA):
            return await self._key(connection, name, text.removeprefix(_METADATA), kinds)
        for prefix, properties in ((_INFERENCE, PROPERTIES), (_PREDICTION, PREDICTION_COLUMNS)):
            if text.startswith(prefix):
                return _property(name, text.removeprefix(prefix), properties)
        own = text in PROPERTIES or text == "label"
        if own and await self._find(connection, text):
            other = "prediction.label" if text == "label" else f"{_INFERENCE}{text}"
            both = [other, f"{_METADATA}{text}"]
            raise _wrong(name, f"{text!r} is a metadata key of the model, too", both)
        if text == "label":
            return LABEL
        if own:
            return _property(name, text, PROPERTIES)
        return await self._key(connection, name, text, kinds)

    async def _find(self, connection: AsyncConnection, key: str) -> KeySeen | None:
        if key not in self.keys:
            keys = await key_registry.find(connection, self.models, {key})
            self.keys[key] = keys.get(key)
        return self.keys[key]

    async def _key(
        self, connection: AsyncConnection, name: Name, key: str, kinds: Collection[Kind]
    ) -> Operand:
        stored, named_family = await self._find(connection, key), _family_named(name)
        if stored is None:
            if self.unknown_keys == "empty":
                fitting = [kind for kind in _FAMILIES if kind in kinds]
                kind = fitting[0] if named_family is None else named_family
                return Operand("metadata", key, kind, "[]" in key)
            raise await self._unknown(connection, name, key)
        counts = _counts(stored)
        if named_family is not None and named_family not in counts:
            raise _impossible(name, f"seen as {', '.join(counts) or 'nothing comparable'}", counts)
        if not counts:
            raise _impossible(name, "seen with no value that could be compared", ())
        fitting = [kind for kind in counts if kind in kinds] or list(counts)
        family = (
            max(fitting, key=lambda kind: counts[kind]) if named_family is None else named_family
        )
        other = {kind: n for kind, n in counts.items() if n and kind != family}
        if named_family is None and other:
            others = ", ".join(f"{counted(n, 'time')} as {kind}" for kind, n in other.items())
            warning = f"{key!r} is read as {family}; it was also sent {others}; `type` says which."
            self.warnings[warning] = None
        return Operand("metadata", key, family, stored.many, "exact", stored.key)

    async def _unknown(self, connection: AsyncConnection, name: Name, key: str) -> UnknownKey:
        near = await key_registry.nearest(connection, self.models, key)
        names = sorted({*near, *PROPERTIES, "label"})
        suggestions = nearest(key, names)
        detail = f"There is no property and no metadata key {key!r}."
        if suggestions:
            detail += f" The nearest are {', '.join(suggestions)}."
        return UnknownKey(detail, faults=[Fault(name.path, "unknown name", suggestions)])


def _counts(key: KeySeen) -> Mapping[Family, int]:
    """Count the values of each family; a text that spells a number counts as a text only."""
    counts: dict[Family, int] = {}
    for entry in key.types:
        if entry.family is not None and entry.flag != FROM_TEXT:
            counts[entry.family] = counts.get(entry.family, 0) + entry.count
    for family in key.families - set(counts):
        counts[family] = 0
    return {family: counts[family] for family in _FAMILIES if family in counts}


def _family_named(name: Name) -> Kind | None:
    if name.type is None:
        return None
    entry = type_named(name.type)
    if entry is None or entry.family is None:
        raise _wrong(name, f"there is no type {name.type!r} to read a value as", sorted(TYPE_NAMES))
    return entry.family


def _property(name: Name, text: str, properties: Mapping[str, Property]) -> Operand:
    entry = properties.get(text)
    if entry is None:
        raise _wrong(name, f"there is no {name.text!r}", nearest(text, sorted(properties)))
    if entry.kind == "location" or entry.sql is None:
        raise _wrong(name, f"nothing is computed of {text!r}", [])
    if name.type is not None:
        raise _wrong(name, "only metadata keys have a choice of types", [])
    table = "inference" if properties is PROPERTIES else "prediction"
    return Operand(
        "inference" if table == "inference" else "prediction",
        text,
        entry.kind,
        many=table == "prediction",
        stored=entry.stored,
    )


def _wrong(name: Name, message: str, suggestions: Sequence[str]) -> Invalid:
    return Invalid(f"{name.text!r}: {message}.", faults=[Fault(name.path, message, suggestions)])


def _impossible(name: Name, message: str, families: object) -> ImpossibleComparison:
    faults = [Fault(name.path, message, [str(family) for family in families])]  # type: ignore[attr-defined]
    return ImpossibleComparison(f"{name.text!r} was {message}.", faults=faults)
