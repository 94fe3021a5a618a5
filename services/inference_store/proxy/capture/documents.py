"""The JSON documents of one inference: its metadata blob and its event."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from inference_store.inference.events import encode
from inference_store.inference.json_text import MAX_DEPTH, write_json

_PUBLISHED_AT: Final = b'"event_published_at":"'
_WRAPPINGS: Final = 3
_INSTANT = len("2026-11-01T12:00:00.123456Z")


def metadata_text(standard: Mapping[str, Any], envelopes: Sequence[bytes]) -> bytes:
    """Return the metadata alone, as the event carries them if they are small."""
    return orjson.dumps(_metadata(standard, envelopes))


def metadata_blob(
    standard: Mapping[str, Any],
    envelopes: Sequence[bytes],
    *,
    event: Mapping[str, Any],
    request: Mapping[str, Any],
    capture: Mapping[str, Any],
) -> bytes:
    """Return the metadata, and what else indexing and replaying need: the event (without inlined
    blobs), the rest of the request, and how it was captured.

    It is written before the event is published, so it has no time of that.
    """
    return orjson.dumps(
        {
            **_metadata(standard, envelopes),
            "event": orjson.Fragment(event_bytes({**event, "published_at": None})),
            "request": request,
            "capture": capture,
        }
    )


def event_bytes(fields: Mapping[str, Any]) -> bytes:
    """Return the encoded event; extras that are None are left out."""
    return encode(**{name: value for name, value in fields.items() if value is not None})


def set_published_at(event: bytes, at: str) -> bytes:
    """Return the event with another time of publishing: RFC 3339, microseconds, Z."""
    # No text of the event holds these bytes: inside a JSON string its quotes are escaped.
    start = event.index(_PUBLISHED_AT) + len(_PUBLISHED_AT)
    return b"".join((event[:start], at.encode(), event[start + _INSTANT :]))


def plain_text(text: str | None, longest: int) -> str | None:
    """Return a text that an event may carry: no NUL, no lone surrogate, not too long."""
    if not text:
        return None
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:longest]


def _metadata(standard: Mapping[str, Any], envelopes: Sequence[bytes]) -> dict[str, Any]:
    # Wrap as little as possible: a reader unwraps only so many levels.
    documents = [_envelope(envelope) for envelope in envelopes]
    return {
        "standard_metadata": _json(standard),
        "metadata": documents[0] if len(documents) == 1 else documents,
    }


def _envelope(raw: bytes) -> Any:
    """Return the caller's envelope unchanged, without the strings that wrap it; as a string if it
    is not strict JSON."""
    for _ in range(_WRAPPINGS):
        try:
            document = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return _json(raw.decode("utf-8", "surrogateescape"))
        if not isinstance(document, str):
            return orjson.Fragment(raw)
        raw = document.encode()
    return _json(raw.decode())


def _json(value: Any) -> orjson.Fragment:
    # A lone surrogate lies inside a string, where `\ud800` is JSON.
    return orjson.Fragment(write_json(_plain(value)).encode("utf-8", "backslashreplace"))


def _plain(value: Any, levels: int = MAX_DEPTH) -> Any:
    """Return mappings and sequences as dicts and lists; what is nested too deeply to be written is
    left out."""
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if levels == 0:
        return []  # which is written as "…"
    if isinstance(value, Mapping):
        return {str(name): _plain(item, levels - 1) for name, item in value.items()}
    return [_plain(member, levels - 1) for member in value]
