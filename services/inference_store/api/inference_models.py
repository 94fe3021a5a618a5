"""Inferences as they are shown, and the choice of their fields."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

import orjson
from pydantic import ConfigDict, Field, create_model

from inference_store.api.answer import Problem
from inference_store.export.columns import (
    DISTANCE,
    FIXED_COLUMNS,
    Kind,
    is_within,
    predictions_column,
)
from inference_store.inference.errors import Invalid
from inference_store.inference.field_docs import Exact
from inference_store.inference.metadata import Entry, MetadataCaps, MetadataType, type_named
from inference_store.inference.nearest import describe_alike, nearest
from inference_store.platform.json_encoding import escape_text
from inference_store.query.aggregates.bins import plain
from inference_store.query.explain import Explanation
from inference_store.query.order import EXAMPLE
from inference_store.query.properties import PREDICTION_COLUMNS, PROPERTIES, Property
from inference_store.query.read import GROUND_TRUTH, MATCHED

from .answer import Shown


class ResolvedTime(Shown):
    """A relative time of the filter, and the instant that it stands for."""

    expression: str = Field(examples=["now() - duration('PT1H')"])
    """As the filter has it, in CQL2-Text."""
    instant: datetime


def _without_required(schema: dict[str, Any]) -> None:
    schema.pop("required", None)


class Resolved(Shown):
    """An answer about a filter."""

    resolved: list[ResolvedTime] | None = None
    """The instants that the filter's relative times stand for, if it has any."""


class Explained(Resolved):
    """An answer of a query that may be explained."""

    explain: Explanation | None = None
    """Only if it was requested."""


class InferenceCount(Explained):
    """How many inferences match."""

    count: int = Field(examples=[17])
    margin: int | None = None
    """Only of an estimate: how far the exact number may be from `count`, 95 times of 100."""
    warnings: list[str]


class ShownMetadataEntry(Shown):
    """A metadata item as it was sent."""

    key: str
    type: str
    value: str | None
    section: Literal["standard", "extended"]
    flags: list[str]


_TYPES: Final[Mapping[Kind, Any]] = {
    Kind.TEXT: str,
    Kind.INTEGER: int,
    Kind.FLOAT: float,
    Kind.BOOL: bool,
    Kind.TIME: datetime,
    Kind.TEXTS: list[str],
}
_UUIDS: Final = {"uid", "capture_id"}
# What every inference or prediction has; everything else may be null.
_ALWAYS: Final = {
    *("uid", "model_id", "inference_id", "aliases", "received_at", "flags", "revision"),
    *("ordinal", "rank", "output"),
}
# Those of properties are the properties' own.
_MEANINGS: Final = {
    "prediction_count": "Null if the response failed or could not be read.",
    MATCHED: "Whether it satisfies a condition in prediction(…) or count_predictions(…) that is not"
    " negated, or the body's `prediction`; null if the query has none.",
    DISTANCE: "Metres to the point, if the page is sorted by distance; null without a location.",
}


def _model_columns(
    columns: Iterable[tuple[str, Kind]], properties: Mapping[str, Property]
) -> type[Shown]:
    """Return a model with a field for each of these columns of exports."""
    fields: dict[str, Any] = {}
    for name, kind in columns:
        type = UUID if name in _UUIDS else _TYPES[kind]
        default = None if name in {DISTANCE, MATCHED} else ...
        meaning = properties[name].meaning if name in properties else ""
        says = _MEANINGS.get(name) or (f"{meaning[0].upper()}{meaning[1:]}." if meaning else None)
        field = Field(default=default, description=says)
        fields[name] = (type if name in _ALWAYS else type | None, field)
    return create_model("Columns", __base__=Shown, **fields)


_Members: Any = _model_columns(predictions_column(()).members, PREDICTION_COLUMNS)


class ShownPrediction(_Members):  # type: ignore[misc]
    """One element of a response. Boxes in pixels, y down."""


class Urls(Shown):
    """Links that read the blobs without a key, for a limited time; null if there is no such
    blob."""

    data: str | None
    response: str | None
    metadata: str | None


class ShownTruthItem(Shown):
    """One thing that is there."""

    label: str | None
    box: list[float] | None
    """xmin, ymin, xmax, ymax in pixels, y down."""
    text: str | None
    value: Exact | None


class ShownTruth(Shown):
    """What one source says of an inference."""

    source: str
    complete: bool
    """Whether `items` name all there is."""
    revision: int
    """Raised each time that the set is replaced."""
    by: str
    """Who set it."""
    at: datetime
    items: list[ShownTruthItem]


class PartialPrediction(ShownPrediction):
    """The requested `fields` of a prediction."""

    model_config = ConfigDict(json_schema_extra=_without_required)


class PartialUrls(Urls):
    """The requested `fields` of the links."""

    model_config = ConfigDict(json_schema_extra=_without_required)


_Columns: Any = _model_columns(((one.name, one.kind) for one in FIXED_COLUMNS), PROPERTIES)


class ShownInference(_Columns):  # type: ignore[misc]
    """An input, and what the model returned for it. What is unknown is null."""

    metadata: list[ShownMetadataEntry] | dict[str, Any] | None = None
    """An object by key if `metadata_as` is `object`."""
    predictions: list[ShownPrediction] | None = None
    ground_truth: list[ShownTruth] | None = None
    """What sources say is true of it: a set for each; none: nobody has said anything."""
    urls: Urls | None = None
    cursor: str | None = None
    """A cursor that continues after it, if `cursors` is set."""


class PartialInference(ShownInference):
    """An inference with only the requested `fields`."""

    model_config = ConfigDict(json_schema_extra=_without_required)

    metadata: list[ShownMetadataEntry] | dict[str, Any] | None = None
    """An object by key if `metadata_as` is `object`."""
    predictions: list[PartialPrediction] | None = None
    urls: PartialUrls | None = None


class EditedInference(ShownInference):
    """An inference after a change of its metadata."""

    warnings: list[str]


class InferenceDetail(ShownInference):
    """An inference that was read by its id."""

    count: int
    """How many inferences of the model have this id; 1000 means at least 1,000."""


class InferencePage(Explained):
    """A page of inferences."""

    items: list[ShownInference | PartialInference]
    next: str | None
    """The cursor of the next page; null on the last one."""
    searched_back_to: datetime | None
    """Set when time ran out: how far the search came. The cursor continues from there."""
    warnings: list[str]


class StreamedInference(PartialInference):
    """A line of a stream: an inference."""

    cursor: str
    """A cursor that continues after this line."""


class StreamSearching(Shown):
    """A line of a stream that has found nothing for a while and is still searching."""

    cursor: str
    """A cursor that continues from here."""
    searched_back_to: datetime
    """How far the search has come."""


class StreamEnd(Resolved):
    """The last line of a stream. A stream without it was cut off: continue with the last cursor."""

    count: int
    """How many inferences were sent."""
    next: str | None
    """A cursor that continues from here; null if nothing more matches."""
    warnings: list[str]
    problem: Problem | None
    """Why the stream ended early, in the form of an error; else null."""


LINES: Final = (StreamedInference, StreamSearching, StreamEnd)
"""What a line of a stream may be."""


FIELDS: Final = tuple(name for name in ShownInference.model_fields if name != "cursor")
"""Every field of an inference."""
PARTS: Final = {
    "predictions": tuple(ShownPrediction.model_fields),
    "urls": tuple(Urls.model_fields),
}
"""What may be chosen inside a field, as in `predictions.label`; of `metadata` any key."""


_PATTERNS = [f"{field}\\.({'|'.join(map(re.escape, names))})" for field, names in PARTS.items()]
FIELD_PATTERN: Final = f"^({'|'.join([*map(re.escape, FIELDS), *_PATTERNS, 'metadata[.].+'])})$"
"""The same as a regular expression of ECMA 262, for the OpenAPI."""


def split_fields(names: Any) -> Any:
    """`a,b` in a link as `a` and `b`; a comma before what is no field belongs to a metadata key."""
    if not isinstance(names, list):
        return names
    return [part for name in names for part in _parts(str(name))]


def _parts(name: str) -> list[str]:
    first, *others = name.split(",")
    parts = [first]
    for other in others:
        if parts[-1].startswith("metadata.") and not re.search(FIELD_PATTERN, other.strip()):
            parts[-1] += f",{other}"
        else:
            parts.append(other.strip())
    return parts


MetadataAs: TypeAlias = Literal["list", "object"]
"""A list of items as they came, or an object of typed values."""
_CAPS: Final = MetadataCaps()
_AS_TEXT: Final = {MetadataType.STRING, MetadataType.TIMESTAMP}


def convert_metadata(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the values by key, for JSON; of a key that occurs several times, a list of them.

    A value that does not fit its type, or a number that JSON does not have (NaN), is the text that
    came.
    """
    values: dict[str, list[Any]] = {}
    for entry in entries:
        if entry.key:
            key = entry.key.encode("utf-8", "backslashreplace").decode()
            values.setdefault(key, []).append(_convert_value(entry))
    return {key: several if several[1:] else several[0] for key, several in values.items()}


def _convert_value(entry: Entry) -> Any:
    if entry.value is None:
        return None
    kind = type_named(entry.type) if entry.type else None
    if kind is None:
        # JSON other than a string came as JSON, or spells a number as text does in filters; a
        # string is written without its quotes, so that one with quotes is text.
        is_text = entry.value.startswith('"')
        return escape_text(entry.value) if is_text else _parse_json(entry.value)
    if kind.type is MetadataType.JSON:
        return _parse_json(entry.value)
    parsed = None if kind.type in _AS_TEXT else kind.parse(entry.value, _CAPS)[0]
    return escape_text(entry.value) if parsed is None else plain(parsed)


def _parse_json(value: str) -> Any:
    """Numbers stay exact; a text that is no JSON is returned as it is."""
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return escape_text(value)
    return orjson.Fragment(value)


_METADATA, _PREDICTIONS, _URLS = "metadata", "predictions", "urls"


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
        parts = {_METADATA, _PREDICTIONS, _URLS, GROUND_TRUTH}
        return cls(frozenset(chosen) & parts, chosen, metadata_as)

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
            raise Invalid.of("fields", f"{DISTANCE}: {message}", [EXAMPLE])


def _select_parts(field: str, value: Any, parts: Collection[str]) -> Any:
    if not parts or value is None:
        return value
    if isinstance(value, dict) and field == _METADATA:
        return {key: value[key] for key in value if any(is_within(p, key) for p in parts)}
    if field == _METADATA:
        return [entry for entry in value if any(is_within(p, str(entry["key"])) for p in parts)]
    if field == _URLS:
        return {name: value[name] for name in value if name in parts}
    return [{name: element[name] for name in element if name in parts} for element in value]


def _refuse_unknown(number: int, name: str, field: str, part: str) -> None:
    if field == _METADATA and (part or name == field):
        return
    parts = [f"{field}.{part_name}" for part_name in PARTS.get(field, ())] if part else []
    known_names = parts or list(FIELDS)
    if name not in known_names:
        near = nearest(name, known_names, limit=3)
        message = f"there is no field {name!r}; {describe_alike(near)}; /reference lists all"
        message += "" if part else "; a metadata key is written metadata.KEY"
        raise Invalid.of(f"fields[{number}]", message, list(dict.fromkeys((*near, *known_names))))
