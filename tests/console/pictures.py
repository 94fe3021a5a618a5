"""Pictures for the tests, created without a library."""

import struct
import zlib

WIDTH, HEIGHT = 320, 240


def make_png(shade: int, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    return encode_png(width, height, (b"\0" + bytes([shade % 256]) * width) * height)


def encode_png(width: int, height: int, lines: bytes, *, colour: int = 0, depth: int = 8) -> bytes:
    """Encode a PNG of these lines, each with its filter before it."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
