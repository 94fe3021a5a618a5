"""Negotiates the content type and coding of an answer (RFC 9110, section 12.5)."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ANY: Final = "*/*"
BYTES: Final = "application/octet-stream"
CODINGS: Final = ("zstd", "gzip")
"""The content codings that answers are compressed with; the first is preferred."""
_SPELLINGS: Final = {"x-gzip": "gzip"}
_MOST_REMEMBERED: Final = 64


class _Rank(NamedTuple):
    """The rank of a media type for the client; the greatest is the best."""

    quality: float
    precision: int
    """2: named itself, 1: by `type/*`, 0: by `*/*`."""
    before: int
    """The earlier in the header, the greater."""


def choose_type(accept: str, offered: Sequence[str]) -> str | None:
    """Return the media type to answer with, out of `offered`; None: none is accepted."""
    ranges = list(_iterate_ranges(accept or ANY))
    ranks = [(_rank(kind, ranges), kind) for kind in offered]
    acceptable = [(rank, kind) for rank, kind in ranks if rank.quality > 0]
    return max(acceptable, key=lambda pair: pair[0])[1] if acceptable else None


@lru_cache(_MOST_REMEMBERED)  # clients send few different headers
def choose_coding(accept_encoding: str) -> str | None:
    """Return the content coding to answer with; None: no coding."""
    qualities = {
        _SPELLINGS.get(name, name): quality for name, quality in _iterate_ranges(accept_encoding)
    }
    others = qualities.get("*", 0.0)
    best = max(CODINGS, key=lambda name: qualities.get(name, others))
    quality = qualities.get(best, others)
    return best if quality > 0 and quality >= qualities.get("identity", 0.0) else None


def _rank(kind: str, ranges: Sequence[tuple[str, float]]) -> _Rank:
    """Rank by the most precise range alone: `*/*;q=0.1, text/html;q=0` accepts no HTML."""
    patterns = (ANY, f"{kind.partition('/')[0]}/*", kind.partition(";")[0].strip().lower())
    ranks = [
        (patterns.index(name), -number, quality)
        for number, (name, quality) in enumerate(ranges)
        if name in patterns
    ]
    precision, before, quality = max(ranks, default=(0, 0, 0.0))
    return _Rank(quality, precision, before)


def _iterate_ranges(header: str) -> Iterator[tuple[str, float]]:
    for item in header.split(","):
        name, *parameters = item.split(";")
        if name.strip():
            yield name.strip().lower(), _read_quality(parameters)


def _read_quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                quality = float(value)
            except ValueError:
                return 0.0
            return quality if 0 <= quality <= 1 else 0.0
    return 1.0
