"""Searches the bytes of an event that cannot be read, as they are and as JSON may write them."""

import json
import re
from collections.abc import Iterator

_ESCAPE = re.compile(r"\\u[0-9a-f]{4}")


def mentions_text(payload: bytes, text: str) -> bool:
    """Return whether bytes hold a text: in UTF-8, or escaped in JSON, also in a JSON string that
    has JSON."""
    return any(
        _encode(form) in payload for outer in _list_forms(text) for form in _list_forms(outer)
    )


def names_text(payload: bytes, text: str) -> bool:
    """Return whether bytes hold a text as a whole JSON string."""
    return any(_encode(f'"{form}"') in payload for form in _list_forms(text))


def _list_forms(text: str) -> Iterator[str]:
    """Yield a text, and how JSON may escape it: hexadecimal digits may be in either case."""
    escaped = json.dumps(text)[1:-1]
    yield text
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield escaped
    yield _ESCAPE.sub(lambda match: "\\u" + match[0][2:].upper(), escaped)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
