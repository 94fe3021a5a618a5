"""From names as they were asked to operands: a name is refused before there is any SQL."""

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
from inference_store.query.ask import UnknownKeys
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property

from .asked import Name
from .functions import Kind
from .operand import LABEL, Operand

_INFERENCE, _METADATA, _PREDICTION = "inference.", "metadata.", "prediction."
_FAMILIES: Final[tuple[Kind, ...]] = ("number", "string", "bool", "timestamp")


@dataclass(slots=True)
class Names:
    """The metadata keys of several models, as far as they are named."""

    models: Sequence[int]
    unknown_keys: UnknownKeys
    seen: dict[str, KeySeen | None] = field(default_factory=dict)
    warnings: dict[str, None] = field(default_factory=dict)
    """Each once, however many measures give rise to it."""

    async def operand(
        self, connection: AsyncConnection, name: Name, kinds: Collection[Kind]
    ) -> Operand:
        """What a name stands for; of the types that a key has, one of `kinds` if it can be.

        Raises Invalid, UnknownKey, ImpossibleComparison."""
        text = name.text
        if text.startswith(_METADATA):
            return await self._key(connection, name, text.removeprefix(_METADATA), kinds)
        for prefix, known in ((_INFERENCE, PROPERTIES), (_PREDICTION, PREDICTION_COLUMNS)):
            if text.startswith(prefix):
                return _property(name, text.removeprefix(prefix), known)
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
        if key not in self.seen:
            found = await key_registry.find(connection, self.models, {key})
            self.seen[key] = found.get(key)
        return self.seen[key]

    async def _key(
        self, connection: AsyncConnection, name: Name, key: str, kinds: Collection[Kind]
    ) -> Operand:
        seen, asked = await self._find(connection, key), _family_named(name)
        if seen is None:
            if self.unknown_keys == "empty":
                fitting = [each for each in _FAMILIES if each in kinds]
                kind = fitting[0] if asked is None else asked
                return Operand("metadata", key, kind, "[]" in key)
            raise await self._unknown(connection, name, key)
        counts = _counts(seen)
        if asked is not None and asked not in counts:
            raise _impossible(name, f"seen as {', '.join(counts) or 'nothing comparable'}", counts)
        if not counts:
            raise _impossible(name, "seen with no value that could be compared", ())
        fitting = [each for each in counts if each in kinds] or list(counts)
        family = max(fitting, key=lambda each: counts[each]) if asked is None else asked
        other = {each: n for each, n in counts.items() if n and each != family}
        if asked is None and other:
            others = ", ".join(f"{counted(n, 'time')} as {each}" for each, n in other.items())
            told = f"{key!r} is read as {family}; it was also sent {others}; `type` says which."
            self.warnings[told] = None
        return Operand("metadata", key, family, seen.many, "exact", seen.key)

    async def _unknown(self, connection: AsyncConnection, name: Name, key: str) -> UnknownKey:
        near = await key_registry.nearest(connection, self.models, key)
        names = sorted({*near, *PROPERTIES, "label"})
        known = nearest(key, names)
        detail = f"There is no property and no metadata key {key!r}."
        if known:
            detail += f" The nearest are {', '.join(known)}."
        return UnknownKey(detail, faults=[Fault(name.path, "unknown name", known)])


def _counts(seen: KeySeen) -> Mapping[Family, int]:
    """How many values there are of each family; texts that are numbers too, as texts only."""
    found: dict[Family, int] = {}
    for each in seen.types:
        if each.family is not None and each.flag != FROM_TEXT:
            found[each.family] = found.get(each.family, 0) + each.count
    for family in seen.families - set(found):
        found[family] = 0
    return {family: found[family] for family in _FAMILIES if family in found}


def _family_named(name: Name) -> Kind | None:
    if name.type is None:
        return None
    entry = type_named(name.type)
    if entry is None or entry.family is None:
        raise _wrong(name, f"there is no type {name.type!r} to read a value as", sorted(TYPE_NAMES))
    return entry.family


def _property(name: Name, text: str, known: Mapping[str, Property]) -> Operand:
    found = known.get(text)
    if found is None:
        raise _wrong(name, f"there is no {name.text!r}", nearest(text, sorted(known)))
    if found.kind == "location" or found.sql is None:
        raise _wrong(name, f"nothing is computed of {text!r}", [])
    if name.type is not None:
        raise _wrong(name, "only metadata keys have a choice of types", [])
    place = "inference" if known is PROPERTIES else "prediction"
    return Operand(
        "inference" if place == "inference" else "prediction",
        text,
        found.kind,
        many=place == "prediction",
        stored=found.stored,
    )


def _wrong(name: Name, message: str, known: Sequence[str]) -> Invalid:
    return Invalid(f"{name.text!r}: {message}.", faults=[Fault(name.path, message, known)])


def _impossible(name: Name, message: str, known: object) -> ImpossibleComparison:
    faults = [Fault(name.path, message, [str(each) for each in known])]  # type: ignore[attr-defined]
    return ImpossibleComparison(f"{name.text!r} was {message}.", faults=faults)
