"""Cuts a stream of bytes into lines of JSON."""

import json
from collections.abc import Iterator
from typing import Any, Final

from .errors import UnexpectedAnswer

MOST_BYTES: Final = 256 * 1024 * 1024
"""Of one line."""


class LineDecoder:
    """Keeps what is not yet a whole line. A line that is cut off is never returned."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[dict[str, Any]]:
        """Yield the lines that the piece completes. Raises UnexpectedAnswer."""
        *whole, rest = piece.split(b"\n")
        for line in whole:
            self._pieces.append(line)
            yield _read_line(b"".join(self._pieces))
            self._pieces, self._size = [], 0
        self._pieces.append(rest)
        self._size += len(rest)
        if self._size > MOST_BYTES:
            raise UnexpectedAnswer(f"a line of the stream has more than {MOST_BYTES:,} bytes")


def _read_line(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as wrong:
        raise UnexpectedAnswer(f"a line of the stream is not JSON: {wrong}") from wrong
    if not isinstance(value, dict):
        raise UnexpectedAnswer("a line of the stream is not an object")
    return value
