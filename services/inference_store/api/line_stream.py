"""Streams of inferences as NDJSON: an object a line, and a last line that says how it ended."""

from typing import Any

from .answer import encode_json
from .inference_pages import AnsweredPage


class LineStream:
    """Encodes the pages of one stream as lines."""

    def __init__(self, first: AnsweredPage) -> None:
        self._end = {"warnings": first.warnings, "problem": None, **first.answer_members}

    def encode_page(self, page: AnsweredPage) -> bytes:
        """Return a line for each inference, and one that says how far the search has come."""
        lines = [
            encode_json(item | {"cursor": page.make_cursor(number)}, times_fit=True) + b"\n"
            for number, item in enumerate(page.format_items())
        ]
        if page.searched_back_to is not None:
            progress = {"cursor": page.next, "searched_back_to": page.searched_back_to}
            lines.append(_encode_line(progress))
        return b"".join(lines)

    def encode_end(self, count: int, after: str | None) -> bytes:
        """Return the last line."""
        return _encode_line({"count": count, "next": after, **self._end})

    def encode_failure(self, count: int, after: str | None, problem: dict[str, Any]) -> bytes:
        """Return the last line of a stream that ended early."""
        return _encode_line({"count": count, "next": after, **self._end, "problem": problem})


def _encode_line(content: dict[str, Any]) -> bytes:
    return encode_json(content) + b"\n"
