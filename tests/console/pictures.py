"""Pictures for the tests, created without a library."""

import struct
import zlib

WIDTH, HEIGHT = 320, 240


def make_png(shade: int, width: int = WIDTH, height: int = HEIGHT) -> bytes:
    row = b"\0" + bytes([shade % 256]) * width
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(row * height)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_make_chunk(*part) for part in parts)


def _make_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + _compute_checksum(kind + content)


def _compute_checksum(content: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(content))
