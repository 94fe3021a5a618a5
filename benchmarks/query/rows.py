"""The rows of a chunk of the population, table by table, ready for binary COPY.

They are the rows that the ingester would write. The metadata as they came are left out (a column
that no search reads; the disk would hold half as many inferences).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .population import CAMERAS, NEW_FIRMWARE, OLD_FIRMWARE, ORGANIZATIONS, TAGS, Chunk, Column

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
# 2000-01-01, in microseconds since 1970
_POSTGRES_EPOCH = 946_684_800_000_000
_BASE = 10_000
_NEGATIVE = 0x4000
# Names of keys, the table each lies in, and the type it was declared as.
KEYS: Final = {
    "frame_number": ("metadata_number", "int"),
    "latitude": ("metadata_number", "float"),
    "longitude": ("metadata_number", "float"),
    "exposure": ("metadata_number", "float"),
    "temperature": ("metadata_number", "float"),
    "camera_position.angle": ("metadata_number", "int"),
    "incident": ("metadata_number", "int"),
    "data_source": ("metadata_string", "string"),
    "organization": ("metadata_string", "string"),
    "segment": ("metadata_string", "string"),
    "firmware": ("metadata_string", "string"),
    "tags[]": ("metadata_string", "string"),
    "note": ("metadata_string", "string"),
    "night": ("metadata_bool", "bool"),
    "captured_at": ("metadata_timestamp", "timestamp"),
    "camera_position": ("metadata_presence", "json"),
    "tags": ("metadata_presence", "json"),
    "operator": ("metadata_presence", "json"),
}


@dataclass(frozen=True, slots=True)
class Numbers:
    """The dictionary's integers: of MODELS and LABELS by place, of keys by name.

    `objects`: whether inferences name any.
    """

    models: Column
    labels: Column
    keys: Mapping[str, int]
    objects: bool = True


def segment(number: Column) -> Column:
    """Names of segments: `street-0417/pole-041733`."""
    return np.char.add(_padded(b"street-", number // 100, 4), _padded(b"/pole-", number, 6))


def _padded(before: bytes, number: Column, digits: int) -> Column:
    """ASCII texts of one length: a number with leading zeros behind something."""
    powers = 10 ** np.arange(digits - 1, -1, -1)
    array = np.empty((len(number), len(before) + digits), dtype=np.uint8)
    array[:, : len(before)] = np.frombuffer(before, dtype=np.uint8)
    array[:, len(before) :] = 48 + number[:, None] // powers % 10
    return array.view(f"S{array.shape[1]}").ravel()


_CAMERAS, _ORGANIZATIONS, _TAGS = (
    np.array(names, dtype=bytes) for names in (CAMERAS, ORGANIZATIONS, TAGS)
)
_FIRMWARE = np.array([*OLD_FIRMWARE, *NEW_FIRMWARE], dtype=bytes)


def _side(chunk: Chunk, numbers: Numbers, key: str, value: Column, where: Column | None) -> bytes:
    """Rows (model, key, value, uid[, whole]) of one key; `where`: of those inferences only."""
    model, uid = numbers.models[chunk.model], chunk.uid
    if where is not None:
        model, value, uid = model[where], value[where], uid[where]
    count = len(uid)
    head = [_int4(model), _int4(numbers.keys[key], count)]
    if KEYS[key][0] == "metadata_string":
        return _pack(count, [*head, _text(value), uid, None])
    return _pack(count, [*head, value, uid])


def _number(chunk: Chunk, numbers: Numbers) -> Iterator[bytes]:
    def whole(values: Column) -> Column:
        return _numeric(values * 10_000, 0)

    latitude, longitude = chunk.location.T
    for key, value in (
        ("frame_number", whole(chunk.frame_number)),
        ("latitude", _numeric(latitude, 4)),
        ("longitude", _numeric(longitude, 4)),
        ("exposure", _numeric(chunk.exposure, 4)),
        ("temperature", _numeric(chunk.temperature, 1)),
        ("camera_position.angle", whole(chunk.angle)),
    ):
        yield _side(chunk, numbers, key, value, None)
    happened = np.flatnonzero(chunk.incident >= 0)
    yield _side(chunk, numbers, "incident", whole(chunk.incident), happened)


def _string(chunk: Chunk, numbers: Numbers) -> Iterator[bytes]:
    for key, value in (
        ("data_source", _CAMERAS[chunk.camera]),
        ("organization", _ORGANIZATIONS[chunk.organization]),
        ("segment", segment(chunk.segment)),
        ("firmware", _FIRMWARE[chunk.firmware]),
    ):
        yield _side(chunk, numbers, key, value, None)
    for tags in chunk.tags.T:
        yield _side(chunk, numbers, "tags[]", _TAGS[tags], np.flatnonzero(tags >= 0))
    note = _padded(b"seen by hand, number ", chunk.number, 10)
    yield _side(chunk, numbers, "note", note, np.flatnonzero(chunk.noted))


def _presence(chunk: Chunk, numbers: Numbers) -> Iterator[bytes]:
    everywhere = np.arange(chunk.count)
    tagged = np.flatnonzero((chunk.tags >= 0).any(axis=1))
    for key, where, is_null in (
        ("camera_position", everywhere, False),
        ("tags", tagged, False),
        ("operator", np.flatnonzero(chunk.unattended), True),
    ):
        count = len(where)
        model = _int4(numbers.models[chunk.model[where]])
        key_column = _int4(numbers.keys[key], count)
        fields = [model, key_column, chunk.uid[where], _boolean(is_null, count)]
        yield _pack(count, fields)


def _prediction(chunk: Chunk, numbers: Numbers) -> Iterator[bytes]:
    there = chunk.there
    owner, ordinal = np.nonzero(there)
    xmin, ymin, xmax, ymax = chunk.box[there].T
    columns = (xmin, ymin, xmax, ymax, (xmax - xmin) * (ymax - ymin))
    fields = [
        *(_int4(numbers.models[chunk.model[owner]]), chunk.uid[owner]),
        *(_int4(ordinal), _int4(ordinal + 1), _int4(0, len(owner))),
        _constant("predictions", len(owner)),
        _int4(numbers.labels[chunk.label[there]]),
        chunk.score[there].astype(">f8"),
        *(column.astype(">f8") for column in columns),
    ]
    yield _pack(len(owner), fields)


def _inference(chunk: Chunk, numbers: Numbers) -> Iterator[bytes]:
    some = chunk.predictions > 0
    for good, top in ((True, True), (True, False), (False, False)):
        where = np.flatnonzero((chunk.ok == good) & (some == top))
        if len(where):
            yield _inferences(chunk, numbers, where, good, top)


def _inferences(chunk: Chunk, numbers: Numbers, where: Column, good: bool, top: bool) -> bytes:
    """Those that went well, or did not, and have predictions, or none."""
    count, number, received = len(where), chunk.number[where], chunk.received_at[where]
    waited = chunk.exposure[where] + 10_000
    fields = [
        *(_int4(numbers.models[chunk.model[where]]), chunk.uid[where]),
        _text(_padded(b"frame-", number, 9)),
        *(_instant(received + later) for later in (0, 1_000, 1_000 + waited, 60_000)),
        _instant(received + (86_400_000_000 if chunk.late else 500_000)),
        *(_key(what, number) if numbers.objects else None for what in (b"d", b"r", b"m")),
        _constant("Object Detection", count),
        _boolean(good, count),
        _int4(200 if good else 500, count),
        _text(chunk.data_hash[where]),
        (40_000 + chunk.exposure[where]).astype(">i8"),
        *(_int4(1280, count), _int4(720, count)),
        _int4(numbers.labels[chunk.label[where, 0]]) if top else None,
        chunk.score[where, 0].astype(">f8") if top else None,
        _int4(chunk.predictions[where]) if good else None,
    ]
    return _pack(count, fields)


def _key(what: bytes, number: Column) -> Column:
    return _text(_padded(b"s3://captures/" + what, number, 9))


def _pack(count: int, fields: Sequence[Column | None]) -> bytes:
    """`count` rows; a field is an array of that length in network byte order, None for NULL."""
    shape: list[tuple[str, Any]] = [("fields", ">i2")]
    for position, field in enumerate(fields):
        shape.append((f"width{position}", ">i4"))
        if field is not None:
            shape.append((f"field{position}", field.dtype))
    array = np.zeros(count, dtype=shape)
    array["fields"] = len(fields)
    for position, field in enumerate(fields):
        array[f"width{position}"] = -1 if field is None else field.dtype.itemsize
        if field is not None:
            array[f"field{position}"] = field
    return array.tobytes()


def _int4(values: Any, count: int | None = None) -> Column:
    return _as(values, ">i4", count)


def _boolean(values: Any, count: int | None = None) -> Column:
    return _as(values, "u1", count)


def _as(values: Any, kind: str, count: int | None) -> Column:
    return np.asarray(values).astype(kind) if count is None else np.full(count, values, dtype=kind)


def _instant(microseconds: Column) -> Column:
    return (microseconds - _POSTGRES_EPOCH).astype(">i8")


def _numeric(scaled: Column, digits: int) -> Column:
    """Numbers times 10,000, below 10^8; `digits` of them after the point, 0 to 4."""
    array = np.zeros(len(scaled), dtype=[("head", ">i2", (4,)), ("digits", ">i2", (3,))])
    size = np.abs(scaled)
    array["head"] = (3, 1, 0, digits)
    array["head"][:, 2] = np.where(scaled < 0, _NEGATIVE, 0)
    whole = size // _BASE
    array["digits"] = np.stack([whole // _BASE, whole % _BASE, size % _BASE], axis=1)
    return array.view("V14").reshape(len(scaled))


def _text(values: Column) -> Column:
    return values.view(f"V{values.dtype.itemsize}")


def _constant(value: str, count: int) -> Column:
    return _text(np.full(count, value.encode()))


_SIDE = ("model", "key", "value", "uid")
_BOX = ("box_xmin", "box_ymin", "box_xmax", "box_ymax", "area")
_TIMES = ("received_at", "forwarded_at", "responded_at", "published_at", "indexed_at")
_STORED = ("data_storage_key", "response_storage_key", "metadata_storage_key")


@dataclass(frozen=True, slots=True)
class Written:
    """A table that is loaded: the columns that are written, and a chunk's rows."""

    columns: tuple[str, ...]
    rows: Callable[[Chunk, Numbers], Iterable[bytes]]


TABLES: Final[Mapping[str, Written]] = {
    "prediction": Written(
        ("model", "uid", "ordinal", "rank", "output", "output_name", "label", "score", *_BOX),
        _prediction,
    ),
    "metadata_number": Written(_SIDE, _number),
    "metadata_string": Written((*_SIDE, "whole"), _string),
    "inference": Written(
        (
            *("model", "uid", "inference_id", *_TIMES, *_STORED, "task_type"),
            *("ok", "http_status", "data_hash", "data_size", "width", "height"),
            *("top_label", "top_score", "prediction_count"),
        ),
        _inference,
    ),
    "metadata_presence": Written(("model", "key", "uid", "is_null"), _presence),
    "metadata_bool": Written(_SIDE, lambda c, n: [_side(c, n, "night", _boolean(c.night), None)]),
    "metadata_timestamp": Written(
        _SIDE, lambda c, n: [_side(c, n, "captured_at", _instant(c.captured_at), None)]
    ),
}
