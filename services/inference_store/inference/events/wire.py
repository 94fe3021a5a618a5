"""The event as a Kafka message: its fields, decoding and encoding."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, get_type_hints

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
)

from inference_store.inference import json_text
from inference_store.inference.errors import InvalidEvent
from inference_store.inference.events.event import (
    CAPTURE_PROBLEMS,
    LOWEST,
    Buckets,
    Extras,
    Id,
    InferenceEvent,
    Reason,
    StorageKey,
    Word,
    flag_of,
    parse_instant,
    uid_of,
)


class WireEvent(BaseModel):
    """The fields that are read from the message; anything else in it is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model_id: Id
    inference_id: Id
    request_received_at: StrictStr
    request_forwarded_at: StrictStr | None
    request_responded_at: StrictStr | None
    event_published_at: StrictStr | None
    data_storage_key: StrictStr | None
    inference_storage_key: StrictStr | None
    metadata_storage_key: StrictStr | None

    schema_version: StrictInt | StrictStr | StrictFloat | None = None
    aliases: Annotated[Sequence[Id], Field(max_length=8)] = ()
    capture_problems: Annotated[Sequence[Reason], Field(max_length=len(CAPTURE_PROBLEMS))] = ()
    flags: Annotated[Sequence[Word], Field(max_length=8)] = ()
    metadata: Any = None
    response: Any = None


EXTRAS = tuple(extra.name for extra in fields(Extras))
_hints = get_type_hints(Extras, include_extras=True)
_extras: dict[str, Any] = {name: (_hints[name], None) for name in EXTRAS}
WHOLE_EVENT = create_model("WireEvent", __base__=WireEvent, **_extras)
"""The event with the extras, whose names and types are those of `Extras`."""
NINE = tuple(WireEvent.model_fields)[:9]
IDS = ("model_id", "inference_id")
PRODUCER_FLAGS = ("batch_not_split",)
"""Flags that a producer may set; others are left out."""
FIELDS = frozenset(WHOLE_EVENT.model_fields)


_AHEAD = timedelta(hours=24)
_MOST_DIGITS: Final = 4000


def decode(payload: bytes, *, record_time: datetime, buckets: Buckets) -> InferenceEvent:
    """Return the event in a Kafka message.

    `record_time` is the Kafka record's own (UTC): an event from more than a day after it is
    refused. Unknown fields and unreadable extras are left out, never an error.
    Raises InvalidEvent, with a reason of DEAD_LETTER_REASONS, for anything else.
    """
    document = _parse_document(payload)
    wire, flags = _validate(document)
    try:
        received_at = _received_at(wire, record_time)
        data = _resolve_key(wire, "data_storage_key", buckets)
        response = _resolve_key(wire, "inference_storage_key", buckets)
        stored = (part for key in (data, response) for part in _split_key(key))
        producer_flags = (flag for flag in PRODUCER_FLAGS if flag in wire.flags)
        return InferenceEvent(
            uid=uid_of(received_at, wire.model_id, wire.inference_id, *stored),
            model_id=wire.model_id,
            inference_id=wire.inference_id,
            received_at=received_at,
            forwarded_at=_time(wire, "request_forwarded_at"),
            responded_at=_time(wire, "request_responded_at"),
            published_at=_time(wire, "event_published_at"),
            data=data,
            response=response,
            metadata=_resolve_key(wire, "metadata_storage_key", buckets),
            aliases=tuple(dict.fromkeys(a for a in wire.aliases if a != wire.inference_id)),
            extras=Extras(**{name: getattr(wire, name) for name in EXTRAS}),
            inline_metadata=_inline_blob(payload, document, "metadata"),
            inline_response=_inline_blob(payload, document, "response"),
            flags=(*flags, *producer_flags, *map(flag_of, dict.fromkeys(wire.capture_problems))),
        )
    except InvalidEvent as wrong:
        wrong.model_id, wrong.inference_id = wire.model_id, wire.inference_id
        raise


def _parse_document(payload: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(payload)
    except orjson.JSONDecodeError:
        document = _parse_tolerantly(payload)
    if not isinstance(document, dict):
        raise InvalidEvent("not_json", "the message is not a JSON object")
    return document


def _parse_tolerantly(payload: bytes) -> Any:
    """Parse a message that strict JSON refuses: the error may be in a field that we never read."""
    try:
        return json.loads(payload.decode("utf-8"), parse_int=_integer)
    except UnicodeDecodeError as wrong:
        raise InvalidEvent("not_json", f"the message is not UTF-8: {wrong}") from None
    except RecursionError:
        raise InvalidEvent("not_json", "the message is nested too deeply") from None
    except ValueError as wrong:
        raise InvalidEvent("not_json", f"the message is not JSON: {wrong}") from None


def _integer(digits: str) -> int | str:
    """Return a JSON integer; as its digits if Python would refuse to convert so many."""
    return int(digits) if len(digits) <= _MOST_DIGITS else digits


def _validate(document: Mapping[str, Any]) -> tuple[WireEvent, tuple[str, ...]]:
    try:
        return WHOLE_EVENT.model_validate(document), ()
    except ValidationError as wrong:
        errors = wrong.errors(include_url=False, include_context=False, include_input=False)
    fields = {str(error["loc"][0]): error["msg"] for error in errors}
    for name, message in fields.items():
        if name in NINE:
            reason = "invalid_id" if name in IDS and name in document else "not_an_event"
            ids = {id: _make_showable(document.get(id)) for id in IDS}
            raise InvalidEvent(reason, f"{name}: {message}", **ids)
    readable = {name: value for name, value in document.items() if name not in fields}
    return WHOLE_EVENT.model_validate(readable), tuple(
        f"extra_unreadable:{name}" for name in fields
    )


def _make_showable(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    return value[:256].replace("\0", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def _received_at(wire: WireEvent, record_time: datetime) -> datetime:
    received_at = _time(wire, "request_received_at")
    if received_at is None or received_at < LOWEST:
        raise InvalidEvent(
            "time_out_of_range", f"request_received_at is unset or before 2000: {received_at}"
        )
    if received_at > record_time + _AHEAD:
        raise InvalidEvent(
            "time_out_of_range",
            f"request_received_at {received_at} is over 24 h after the record's {record_time}",
        )
    return received_at


def _time(wire: WireEvent, name: str) -> datetime | None:
    text: str | None = getattr(wire, name)
    try:
        return parse_instant(text) if text else None
    except ValueError as wrong:
        raise InvalidEvent("invalid_time", f"{name}: {wrong}") from None


def _resolve_key(wire: WireEvent, name: str, buckets: Buckets) -> StorageKey | None:
    text: str | None = getattr(wire, name)
    try:
        return buckets.resolve(text) if text else None
    except ValueError as wrong:
        raise InvalidEvent("invalid_storage_key", f"{name}: {wrong}") from None


def _split_key(key: StorageKey | None) -> tuple[str, str]:
    return ("", "") if key is None else (key.bucket, key.key)


def _inline_blob(payload: bytes, document: Mapping[str, Any], name: str) -> bytes | None:
    """Return a blob inside the message: a JSON string is its text, else the value as written."""
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    try:
        written = orjson.dumps(value)
    except TypeError:  # orjson.JSONEncodeError: lone surrogates, huge integers
        written = b""
    # Numbers may have lost digits: only a text that the message contains unchanged is exact.
    if written and written in payload:
        return written
    span = json_text.by_name(payload, json_text.root(payload))[name]
    return payload[span.start : span.end]


def rfc3339(at: datetime | None) -> str:
    """Return an instant as the event spells it; Go's zero time if there is none."""
    if at is None:
        return "0001-01-01T00:00:00Z"
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def encode(
    *,
    model_id: str,
    inference_id: str,
    received_at: datetime,
    forwarded_at: datetime | None = None,
    responded_at: datetime | None = None,
    published_at: datetime | None = None,
    **rest: Any,
) -> bytes:
    """Return the event's bytes: the nine fields, then the given extras. `rest`: storage keys, which
    are else empty, and extras."""
    times = zip(NINE[2:6], (received_at, forwarded_at, responded_at, published_at), strict=True)
    fields = {name: rfc3339(at) for name, at in times} | dict.fromkeys(NINE[6:], "")
    return orjson.dumps({"model_id": model_id, "inference_id": inference_id, **fields, **rest})
