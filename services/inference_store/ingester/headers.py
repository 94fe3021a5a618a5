"""Kafka headers: `producer` and `sequence` show which captures never arrived."""

from collections.abc import Sequence

from .record_batches import escape_surrogates

_MOST = 32
_LONGEST = 1024
_LONGEST_PRODUCER = 256
Headers = Sequence[tuple[str, str]]


def read_headers(raw: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Return headers as text that Postgres can store, cut at the caps."""
    return tuple((_text(escape_surrogates(name)), _value(value)) for name, value in raw[:_MOST])


def read_sequence(headers: Headers) -> tuple[str, int] | None:
    """Return the producer and its sequence number, if both exist and are valid; else None."""
    values = dict(headers)
    producer, number = values.get("producer"), values.get("sequence", "")
    if not producer or len(producer) > _LONGEST_PRODUCER:
        return None
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        return None
    return producer, int(number)


def _value(value: bytes | None) -> str:
    return _text((value or b"")[:_LONGEST].decode("utf-8", "replace"))


def _text(text: str) -> str:
    return text[:_LONGEST].replace("\0", "\ufffd")
