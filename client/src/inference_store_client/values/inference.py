"""One inference."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, overload
from uuid import UUID

from inference_store_client.errors import NotIncluded
from inference_store_client.json_text import read_json
from inference_store_client.times import read_instant
from inference_store_client.values.truth import GroundTruth

# The predictions of an inference.


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One element of a response. Boxes are in pixels, y down."""

    ordinal: int
    rank: int
    output: int
    output_name: str | None
    label: str | None
    score: float | None
    xmin: float | None
    ymin: float | None
    xmax: float | None
    ymax: float | None
    area: float | None
    cx: float | None
    cy: float | None
    w: float | None
    h: float | None
    angle: float | None
    prompt: str | None
    answer: str | None
    text: str | None
    start: int | None
    end: int | None
    value: float | None
    matched: bool | None = None
    """Whether it satisfies a condition of the filter on predictions; None: the filter has none."""

    @property
    def box(self) -> tuple[float, float, float, float] | None:
        """The box as (xmin, ymin, xmax, ymax); None: the prediction has no box."""
        match self.xmin, self.ymin, self.xmax, self.ymax:
            case float() as left, float() as top, float() as right, float() as bottom:
                return left, top, right, bottom
        return None


class Predictions(Sequence[Prediction]):
    """The predictions of an inference, in the order of the response.

    Raises NotIncluded if they were not asked for.
    """

    def __init__(self, items: tuple[Prediction, ...] | None) -> None:
        self._items = items

    @property
    def _included(self) -> tuple[Prediction, ...]:
        if self._items is None:
            raise NotIncluded("predictions were not asked for: include=['predictions']")
        return self._items

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Prediction, ...]: ...
    def __getitem__(self, index: int | slice) -> Prediction | tuple[Prediction, ...]:
        return self._included[index]

    def __len__(self) -> int:
        return len(self._included)

    def __eq__(self, other: object) -> bool:
        return self._items == other._items if isinstance(other, Predictions) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"Predictions({'not included' if self._items is None else list(self._items)})"


# Reads the text of a metadata value as its declared type, exactly.
#
# The rules are those of the store (`metadata_as` object), but a timestamp becomes a `datetime`.
# A value that does not fit its type, and NaN, is the text that came.

MetadataValue: TypeAlias = Any
"""int, Decimal, bool, str, datetime, None, or JSON with exact numbers."""
# The store's own bounds: a number beyond them is a text there, too.
_MOST_DIGITS: Final = 1000
_MOST_EXPONENT: Final = 400
_NUMBER: Final = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,6}))?", re.ASCII
)
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


def read_value(type_name: str, text: str | None) -> MetadataValue:
    """Return a value as its declared type; the text itself if it does not fit."""
    if text is None:
        return None
    read = _READERS.get(type_name.strip().lower(), _read_unknown)
    try:
        return read(text)
    except (ValueError, OverflowError, RecursionError):
        return text


def _read_decimal(text: str) -> Decimal:
    text = text.strip()
    match = _NUMBER.fullmatch(text)
    if match is None or abs(int(match[1] or 0)) > _MOST_EXPONENT:
        raise ValueError(f"{text!r} is not a number")
    if sum(map(str.isdigit, re.split("[eE]", text)[0])) > _MOST_DIGITS:
        raise ValueError("the number has too many digits")
    return Decimal(text)


def _read_int(text: str) -> int:
    value = _read_decimal(text)
    whole = int(value)
    if whole != value:
        raise ValueError(f"{text!r} is not a whole number")
    return whole


def _read_bool(text: str) -> bool:
    value = _BOOLEANS.get(text.strip().lower())
    if value is None:
        raise ValueError(f"{text!r} is neither true nor false")
    return value


def _read_unknown(text: str) -> MetadataValue:
    """Read a value without a type: JSON came as JSON; a text was written without its quotes."""
    return text if text.startswith('"') else read_json(text)


def _named(*names: str, read: Callable[[str], Any]) -> dict[str, Callable[[str], Any]]:
    return dict.fromkeys(names, read)


_READERS: Final[Mapping[str, Callable[[str], MetadataValue]]] = {
    **_named("string", "str", read=str),
    **_named("int", "integer", read=_read_int),
    **_named("float", "double", "number", read=_read_decimal),
    **_named("bool", "boolean", read=_read_bool),
    **_named("timestamp", "datetime", "date", read=read_instant),
    **_named("json", "dict", "object", read=read_json),
}


# The metadata of an inference: typed values by key, and the entries as they came.


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataEntry:
    """One metadata item as it came."""

    key: str
    type: str
    value: str | None
    section: Literal["standard", "extended"]
    flags: tuple[str, ...]


class Metadata(Mapping[str, MetadataValue]):
    """Metadata by key, each value in its type; the last one of a key that came twice.

    `entries` has every item as it came. Raises NotIncluded if metadata was not asked for.
    """

    def __init__(self, entries: tuple[MetadataEntry, ...] | None) -> None:
        self._entries = entries

    @property
    def entries(self) -> tuple[MetadataEntry, ...]:
        """Every item as it came, in order."""
        if self._entries is None:
            raise NotIncluded("metadata was not asked for: include=['metadata']")
        return self._entries

    @cached_property
    def _by_key(self) -> Mapping[str, MetadataValue]:
        return {entry.key: read_value(entry.type, entry.value) for entry in self.entries}

    def __getitem__(self, key: str) -> MetadataValue:
        return self._by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Metadata):
            return self._entries == other._entries
        return NotImplemented if not isinstance(other, Mapping) else dict(self) == dict(other)

    def __hash__(self) -> int:
        return hash(self._entries)

    def __repr__(self) -> str:
        return "Metadata(not included)" if self._entries is None else f"Metadata({self._by_key})"


_NO_METADATA: Final = Metadata(None)
_NO_PREDICTIONS: Final = Predictions(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Urls:
    """Links that read the blobs without a key, for a while; None: there is no such blob."""

    data: str | None
    response: str | None
    metadata: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceFields:
    """One datum and what the model answered. What is not known is None."""

    uid: UUID
    model_id: str
    inference_id: str
    aliases: tuple[str, ...]
    received_at: datetime
    forwarded_at: datetime | None
    responded_at: datetime | None
    published_at: datetime | None
    indexed_at: datetime | None
    pre_ms: float | None
    """Milliseconds from received to forwarded."""
    model_ms: float | None
    """Milliseconds from forwarded to responded."""
    post_ms: float | None
    """Milliseconds from responded to published."""
    ok: bool | None
    http_status: int | None
    grpc_code: int | None
    error: str | None
    trace_id: str | None
    model_version: str | None
    task_type: str | None
    protocol: str | None
    action: str | None
    batch_index: int | None
    batch_size: int | None
    capture_id: UUID | None
    data_hash: str | None
    data_size_bytes: int | None
    data_content_type: str | None
    width: int | None
    height: int | None
    top_label: str | None
    top_score: float | None
    prediction_count: int | None
    """None: the response failed or could not be read."""
    flags: tuple[str, ...]
    problem: str | None
    data_deleted_at: datetime | None
    response_deleted_at: datetime | None
    revision: int
    data_storage_key: str | None
    response_storage_key: str | None
    metadata_storage_key: str | None
    metadata: Metadata = _NO_METADATA
    predictions: Predictions = _NO_PREDICTIONS
    ground_truth: tuple[GroundTruth, ...] | None = None
    """With `include=["ground_truth"]`."""
    urls: Urls | None = None
    """With `include=["urls"]`."""
    distance_metres: float | None = None
    """If the order is the distance to a point."""
    cursor: str | None = None
    """Continues after this inference; of a stream."""
    count: int | None = None
    """How many inferences have this id; of an inference that was asked for by its id."""
