"""The metadata blob and the event of one inference: what of it is JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from inference_store.inference.events import encode
from inference_store.inference.json_text import MAX_DEPTH, write_json

_PUBLISHED_AT: Final = b'"event_published_at":"'
_WRAPPINGS: Final = 3
_INSTANT = len("2026-11-01T12:00:00.123456Z")


def metadata_text(standard: Mapping[str, Any], envelopes: Sequence[bytes]) -> bytes:
    """The metadata alone, as the event carries them where they are small."""
    return orjson.dumps(_metadata(standard, envelopes))


def metadata_blob(
    standard: Mapping[str, Any],
    envelopes: Sequence[bytes],
    *,
    event: bytes,
    request: Mapping[str, Any],
    capture: Mapping[str, Any],
) -> bytes:
    """The metadata, and what else has to be known to index and to ask again: the event (without
    what travels in it), the rest of the request, and how it was captured."""
    return orjson.dumps(
        {
            **_metadata(standard, envelopes),
            "event": orjson.Fragment(event),
            "request": request,
            "capture": capture,
        }
    )


def event_bytes(fields: Mapping[str, Any]) -> bytes:
    """The event; extras that are None are left out."""
    return encode(**{name: value for name, value in fields.items() if value is not None})


def stamped(event: bytes, at: str) -> bytes:
    """The event with another time of publishing: RFC 3339, microseconds, Z."""
    # No text of the event holds these bytes: inside a JSON string its quotes are escaped.
    start = event.index(_PUBLISHED_AT) + len(_PUBLISHED_AT)
    return b"".join((event[:start], at.encode(), event[start + _INSTANT :]))


def plain_text(text: str | None, longest: int) -> str | None:
    """A text that an event may carry: no NUL, no lone surrogate, not too long."""
    if not text:
        return None
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")[:longest]


def _metadata(standard: Mapping[str, Any], envelopes: Sequence[bytes]) -> dict[str, Any]:
    # As few wrappings as can be: a reader opens only so many.
    found = [_envelope(each) for each in envelopes]
    return {
        "standard_metadata": _json(standard),
        "metadata": found[0] if len(found) == 1 else found,
    }


def _envelope(raw: bytes) -> Any:
    """The caller's envelope word for word, out of the strings that it is wrapped in; where it is
    no strict JSON, as a string of it."""
    for _ in range(_WRAPPINGS):
        try:
            found = orjson.loads(raw)
        except orjson.JSONDecodeError:
            return _json(raw.decode("utf-8", "surrogateescape"))
        if not isinstance(found, str):
            return orjson.Fragment(raw)
        raw = found.encode()
    return _json(raw.decode())


def _json(value: Any) -> orjson.Fragment:
    # A lone surrogate lies inside a string, where `\ud800` is JSON.
    return orjson.Fragment(write_json(_plain(value)).encode("utf-8", "backslashreplace"))


def _plain(value: Any, levels: int = MAX_DEPTH) -> Any:
    """Mappings and sequences as JSON's own; what is nested deeper than is written, left out."""
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if levels == 0:
        return []  # which is written as "…"
    if isinstance(value, Mapping):
        return {str(name): _plain(each, levels - 1) for name, each in value.items()}
    return [_plain(each, levels - 1) for each in value]
