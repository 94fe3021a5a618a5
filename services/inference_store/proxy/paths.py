"""Paths as model servers read them, for recognising calls; what goes on is the path that came."""

import re
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote

_ESCAPE: Final = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED: Final = re.compile(r"[A-Za-z0-9._~-]")
_IRREGULAR: Final = re.compile(r"%|//|/\.")


class PathPrefixes:
    """What may stand before the path of a protocol: a gateway's own path."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """`patterns` begin with a slash; `*` is any part of one segment."""
        prefixes = [re.escape(each.rstrip("/")).replace(r"\*", "[^/]*") for each in patterns]
        self._prefix = re.compile(f"(?:{'|'.join(prefixes)})(?=/)") if prefixes else None

    def readings(self, path: str) -> Iterator[str]:
        """Each way in which a server may read a path (percent-escaped, no query), each one without
        a prefix too."""
        normal = normalize(path)
        yield from self._with_and_without(normal)
        # Some servers undo every escape before they route: a slash's, too.
        if "%" in normal and (decoded := _clean(unquote(path))) != normal:
            yield from self._with_and_without(decoded)

    def _with_and_without(self, path: str) -> Iterator[str]:
        yield path
        if self._prefix is not None and (prefix := self._prefix.match(path)):
            yield path[prefix.end() :]


def normalize(path: str) -> str:
    """The normal form of a path (RFC 3986, section 6.2.2): escapes of unreserved characters undone,
    others in capitals, no dot segments; of slashes side by side, one."""
    if _IRREGULAR.search(path) is None:
        return path
    return _clean(_ESCAPE.sub(_decode_unreserved, path))


def _decode_unreserved(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if _UNRESERVED.match(character) else escape[0].upper()


def _clean(path: str) -> str:
    """Dot segments removed (section 5.2.4), and empty ones but for the last."""
    kept: list[str] = []
    *segments, last = path.split("/")
    for segment in (*segments, last):
        if segment == "..":
            del kept[-1:]
        elif segment not in {"", "."}:
            kept.append(segment)
    end = "/" if kept and last in {"", ".", ".."} else ""
    return "/" + "/".join(kept) + end
