"""Server-sent events: the data of each, in order."""

import re
from typing import Final

from inference_store.proxy.exchange import Headers, header

_LINES: Final = re.compile(rb"\r\n|\n|\r")
_MARK: Final = b"\xef\xbb\xbf"


def is_event_stream(headers: Headers, body: bytes) -> bool:
    """The body is one, by its content type or by how it begins."""
    declared = (header(headers, "content-type") or "").lower()
    return declared.startswith("text/event-stream") or body.startswith((b"data:", b"event:"))


def events(body: bytes) -> list[bytes]:
    """The data of each event that has any; also of the last, where the stream broke off in it."""
    found: list[bytes] = []
    lines: list[bytes] = []
    for line in [*_LINES.split(body.removeprefix(_MARK)), b""]:
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line:
            found.append(b"\n".join(lines))
            lines = []
    return [each for each in found if each]
