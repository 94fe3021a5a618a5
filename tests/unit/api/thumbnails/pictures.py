"""Pictures of friends and strangers, made in memory."""

import struct
import zlib
from io import BytesIO
from typing import Any

from PIL import Image


def make_picture(
    form: str = "JPEG", size: tuple[int, int] = (64, 32), mode: str = "RGB", **more: Any
) -> bytes:
    """A picture of one colour."""
    out = BytesIO()
    Image.new(mode, size, 1).save(out, form, **more)
    return out.getvalue()


def make_png(width: int, height: int, *, rows: int = 1) -> bytes:
    """A grey PNG that says a size, and has so many rows of it."""

    def chunk(name: bytes, data: bytes) -> bytes:
        body = name + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(b"\0" * (width + 1) * rows)
    chunks = chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def make_progressive(width: int, height: int) -> bytes:
    """A progressive JPEG without subsampling that says a size."""
    picture = make_picture(progressive=True, subsampling=0)
    size = picture.index(b"\xff\xc2") + 5
    return picture[:size] + struct.pack(">HH", height, width) + picture[size + 4 :]


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
