"""Segments: plain tar archives of many captures, in WebDataset's layout, and their members.

A capture's blobs are the entries `<capture id>.data`, `.response` and `.metadata.json`, one after
the other. Each is addressed by its range of bytes (`layout.Member`), which never changes: an
erasure overwrites the bytes with zeros, and renames the entry to `erased`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from zlib import adler32

from inference_store.inference.layout import Kind

BLOCK: Final = 512
"""Bytes of a tar's header; data fill a multiple of it."""
END: Final = bytes(2 * BLOCK)
"""The end of a tar."""
ERASED: Final = "erased"
"""The name of an entry whose bytes were overwritten."""
SUFFIXES: Final[Mapping[Kind, str]] = {
    "data": ".data",
    "response": ".response",
    "metadata": ".metadata.json",
}
"""What an entry's name has behind its capture's id, by the kind of the blob."""
TRUTH_SUFFIX: Final = ".truth.json"
"""The same of a set of ground truth, behind an id of its own."""
CONTENT_TYPE: Final = "application/x-tar"
_PIECE: Final = 1024 * 1024
# Where the checksum lies in a header, and what stands there while it is computed.
_SUM, _BLANK = slice(148, 156), b" " * 8
_OWNER: Final = b"0000644\x000000000\x000000000\x00"
_REST: Final = _BLANK + b"0" + bytes(100) + b"ustar\x0000" + bytes(BLOCK - 265)
_REST_SUM: Final = sum(_REST)


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a tar: its name, and where its data lie."""

    name: str
    offset: int
    size: int


def make_header(name: str, size: int, at: int) -> bytes:
    """Return the header of an entry: at most 100 bytes of name; `at`: seconds since 1970."""
    own = b"%b%b%011o\0%011o\0" % (name.encode().ljust(100, b"\0"), _OWNER, size, at)
    return b"%b%06o\0 %b" % (own, _sum(own) + _REST_SUM, _REST[len(_BLANK) :])


def _sum(block: bytes) -> int:
    """Return the sum of a header's bytes, modulo 65,521, which ours do not reach; `sum` takes ten
    times as long."""
    return (adler32(block) & 0xFFFF) - 1


def pad(size: int) -> bytes:
    """Return the zeros that follow data of that size."""
    return bytes(-size % BLOCK)


def read_header(block: bytes, offset: int) -> Entry:
    """Return the entry of a header whose data begin at `offset`. Raises ValueError if the block is
    none."""
    stated = int(block[_SUM].split(b"\0")[0] or b"0", 8)
    if len(block) != BLOCK or stated != _sum(block[: _SUM.start] + _BLANK + block[_SUM.stop :]):
        raise ValueError("no header of a tar's entry")
    return Entry(block[:100].rstrip(b"\0").decode(), offset, int(block[124:135], 8))


class Readable(Protocol):
    """What is read from its beginning to its end."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes; none at the end."""


def iterate_entries(
    file: Readable, wants: Callable[[Entry], bool] = lambda _: False
) -> Iterator[tuple[Entry, bytes | None]]:
    """Yield the entries up to the tar's end, with the data of those that are wanted. Raises
    ValueError where it is no tar of ours, at last where it ends amid an entry."""
    at = 0
    while any(block := file.read(BLOCK)):
        entry = read_header(block, at + BLOCK)
        data = file.read(entry.size) if wants(entry) else None
        yield entry, data
        at = entry.offset + entry.size + len(pad(entry.size))
        left = at - entry.offset - len(data or b"")
        while left and (piece := file.read(min(left, _PIECE))):
            left -= len(piece)
    if not block:
        raise ValueError("the tar has no end")
