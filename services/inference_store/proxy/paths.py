"""Paths as model servers read them, to recognise calls; the path is forwarded unchanged."""

import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote

_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9._~-]")
_IRREGULAR: Final = re.compile(r"%|//|/\.")


class PathPrefixes:
    """The prefixes that may precede the path of a protocol: a gateway's own path."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """`patterns` begin with a slash; `*` is any part of one segment."""
        prefixes = [re.escape(pattern.rstrip("/")).replace(r"\*", "[^/]*") for pattern in patterns]
        self._prefix = re.compile(f"(?:{'|'.join(prefixes)})(?=/)") if prefixes else None

    def readings(self, path: str) -> Iterator[str]:
        """Yield the ways in which a server may read a path (percent-escaped, no query), also
        without a prefix."""
        normal = normalize(path)
        yield from self._yield_without_prefix(normal)
        # Some servers decode every escape before they route, even that of a slash.
        if "%" in normal and (decoded := _remove_dot_segments(unquote(path))) != normal:
            yield from self._yield_without_prefix(decoded)

    def _yield_without_prefix(self, path: str) -> Iterator[str]:
        yield path
        if self._prefix is not None and (prefix := self._prefix.match(path)):
            yield path[prefix.end() :]


def normalize(path: str) -> str:
    """Return the normal form of a path (RFC 3986, section 6.2.2): escapes of unreserved characters
    decoded, others in capitals, no dot segments, no repeated slashes."""
    if _IRREGULAR.search(path) is None:
        return path
    return _remove_dot_segments(_ESCAPE.sub(_decode_unreserved, path))


def _decode_unreserved(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if _UNRESERVED.match(character) else escape[0].upper()


def _remove_dot_segments(path: str) -> str:
    """Remove dot segments (section 5.2.4), and empty ones except the last."""
    remaining: list[str] = []
    *segments, last = path.split("/")
    for segment in (*segments, last):
        if segment == "..":
            del remaining[-1:]
        elif segment not in {"", "."}:
            remaining.append(segment)
    end = "/" if remaining and last in {"", ".", ".."} else ""
    return "/" + "/".join(remaining) + end
