"""Reads PNG, as far as the small classifier needs it: 8 bits per channel, not interlaced, small."""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from .serving import NoPicture

MOST_PIXELS: Final = 256 * 256
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_CHANNELS: Final = {0: 1, 2: 3, 4: 2, 6: 4}
"""By colour type: grey, colours, and each with opacity."""


@dataclass(frozen=True, slots=True)
class GreyPicture:
    """Rows of greys, 0 to 255."""

    width: int
    height: int
    rows: Sequence[Sequence[float]]


def read_png(encoded: bytes) -> GreyPicture:
    """Return the picture in grey. Raises NoPicture."""
    try:
        return _read(encoded)
    except (struct.error, zlib.error, IndexError) as error:
        raise NoPicture(f"a broken PNG ({error})") from error


def _read(encoded: bytes) -> GreyPicture:
    if not encoded.startswith(_SIGNATURE):
        raise NoPicture("it is no PNG")
    chunks = list(_chunks(encoded))
    if not chunks or chunks[0][0] != b"IHDR":
        raise NoPicture("a PNG without a head")
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[0][1])
    if depth != 8 or interlaced or colour not in _CHANNELS:
        raise NoPicture("a PNG whose channels do not have 8 bits, or with a palette or interlaced")
    if not 0 < width * height <= MOST_PIXELS:
        raise NoPicture(f"a PNG of {width} x {height} pixels, and {MOST_PIXELS} are the most")
    channels = _CHANNELS[colour]
    size = height * (1 + width * channels)
    packed = b"".join(data for kind, data in chunks if kind == b"IDAT")
    raw = zlib.decompressobj().decompress(packed, size)
    if len(raw) < size:
        raise NoPicture("a PNG that ends too early")
    lines = _lines(raw, width * channels, channels)
    return GreyPicture(width, height, [_greys(line, channels) for line in lines])


def _greys(line: bytearray, channels: int) -> Sequence[float]:
    colours = 3 if channels > 2 else 1
    return [sum(line[at : at + colours]) / colours for at in range(0, len(line), channels)]


def _chunks(encoded: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(_SIGNATURE)
    while at < len(encoded):
        length, kind = struct.unpack_from(">I4s", encoded, at)
        yield kind, encoded[at + 8 : at + 8 + length]
        at += length + 12


def _lines(raw: bytes, length: int, channels: int) -> Iterator[bytearray]:
    """Yield each line without its filter: a line stores the differences to adjacent pixels."""
    above = bytearray(length)
    for start in range(0, len(raw), length + 1):
        kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + length])
        for at in range(length) if kind else ():
            previous = line[at - channels] if at >= channels else 0
            corner = above[at - channels] if at >= channels else 0
            line[at] = (line[at] + _predict(kind, previous, above[at], corner)) & 255
        yield line
        above = line


def _predict(kind: int, previous: int, above: int, corner: int) -> int:
    if kind == 4:
        near = previous + above - corner
        return min((previous, above, corner), key=lambda neighbour: abs(near - neighbour))
    return (0, previous, above, (previous + above) // 2)[kind]
