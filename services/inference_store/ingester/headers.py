"""Kafka headers: `producer` and `sequence` tell which captures never arrived."""

from collections.abc import Sequence

from .record_batches import escape_surrogates

_MOST = 32
_LONGEST = 1024
_LONGEST_PRODUCER = 256
Headers = Sequence[tuple[str, str]]


def read_headers(raw: Sequence[tuple[str, bytes | None]]) -> Headers:
    """Headers as text that Postgres can keep; what is beyond the caps is left out."""
    return tuple((_text(escape_surrogates(name)), _value(value)) for name, value in raw[:_MOST])


def read_sequence(headers: Headers) -> tuple[str, int] | None:
    """The producer and its sequence number, where both are there and sound."""
    found = dict(headers)
    producer, number = found.get("producer"), found.get("sequence", "")
    if not producer or len(producer) > _LONGEST_PRODUCER:
        return None
    if not number.isascii() or not number.isdigit() or len(number) > 18:
        return None
    return producer, int(number)


def _value(value: bytes | None) -> str:
    return _text((value or b"")[:_LONGEST].decode("utf-8", "replace"))


def _text(text: str) -> str:
    return text[:_LONGEST].replace("\0", "\ufffd")
