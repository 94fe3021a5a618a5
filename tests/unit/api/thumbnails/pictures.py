"""Pictures of friends and strangers, made in memory."""

import struct
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


def make_progressive(width: int, height: int) -> bytes:
    """A progressive JPEG without subsampling that says a size."""
    picture = make_picture(progressive=True, subsampling=0)
    size = picture.index(b"\xff\xc2") + 5
    return picture[:size] + struct.pack(">HH", height, width) + picture[size + 4 :]


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
