"""The messages between the api and the process that decodes, over its stdin and stdout."""

from struct import Struct
from typing import Final, NamedTuple


class Thumbnail(NamedTuple):
    """A thumbnail as JPEG, with its size and that of its picture."""

    jpeg: bytes
    size: tuple[int, int]
    picture: tuple[int, int]


REQUEST: Final = Struct(">IH")
"""Bytes of the picture that follows; the longest edge of its thumbnail."""
ANSWER: Final = Struct(">BIIHHI")
"""Outcome; width and height of the picture and of the thumbnail; bytes of the JPEG that follows."""
MADE: Final = 0
REFUSALS: Final = (
    "",
    "The input is not a JPEG, PNG, WebP, GIF or BMP picture.",
    "The picture is damaged or cut off.",
    "The picture has too many pixels.",
    "The picture takes too much memory to decode.",
)
"""By the outcome."""
NOT_A_PICTURE: Final = 1
DAMAGED: Final = 2
TOO_MANY_PIXELS: Final = 3
TOO_MUCH_MEMORY: Final = 4
