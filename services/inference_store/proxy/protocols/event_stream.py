"""Reads server-sent events."""

import re
from typing import Final

from inference_store.proxy.exchange import Headers, header

_LINES: Final = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


def is_event_stream(headers: Headers, body: bytes) -> bool:
    """Return whether a body is an event stream, by its content type or its beginning."""
    declared = (header(headers, "content-type") or "").lower()
    return declared.startswith("text/event-stream") or body.startswith((b"data:", b"event:"))


def events(body: bytes) -> list[bytes]:
    """Return the data of each event that has any, including a last event that broke off."""
    data: list[bytes] = []
    lines: list[bytes] = []
    for line in [*_LINES.split(body.removeprefix(_BYTE_ORDER_MARK)), b""]:
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line:
            data.append(b"\n".join(lines))
            lines = []
    return [event for event in data if event]
