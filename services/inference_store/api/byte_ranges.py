"""Reads the header `Range` (RFC 9110, section 14)."""

import re
from typing import Final

from inference_store.inference.errors import RangeNotSatisfiable

_RANGE: Final = re.compile(r"bytes\s*=\s*([0-9]{0,18})-([0-9]{0,18})\s*", re.ASCII | re.IGNORECASE)


def read_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte of the range, and the one after its last; None: all bytes.

    All bytes are the answer to several ranges and to what is no range, as the RFC allows. Raises
    RangeNotSatisfiable.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:  # the last bytes
        begin, end = max(0, size - int(match[2])), size
    else:
        begin, end = int(match[1]), int(match[2] or size) + (match[2] != "")
        if match[2] and end <= begin:
            return None
    if begin >= size:
        raise RangeNotSatisfiable(size)
    return begin, min(end, size)
