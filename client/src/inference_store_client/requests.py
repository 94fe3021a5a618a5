"""Requests to the store, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from .errors import SettingsError
from .json_text import write_json

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ARROW: Final = "application/vnd.apache.arrow.stream"
CSV: Final = "text/csv"
ANY: Final = "*/*"
_ASKING: Final = ("/query", "/count", "/aggregate", "/drift", "/neighbours", "/thumbnails")
"""What the path of a POST that only reads ends with."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. A read may be sent again, anything else never: the API has no idempotency keys.

    `path`: below the store's address, percent-escaped; or a whole URL, for a link.
    """

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    accept: str = JSON
    is_read: bool = True
    may_leave: bool = False
    """Whether another host may answer: a blob's link, or a redirect to one. It gets no key."""
    content_type: str = JSON
    begin: int = 0
    """The first byte that is wanted; a server that knows no ranges sends all of them."""
    seconds: float | None = None
    """How long the answer may take; None: as long as any other."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, without the key."""
        sent = {} if self.body is None else {"Content-Type": self.content_type}
        if self.begin:
            sent["Range"] = f"bytes={self.begin}-"
        return {"Accept": self.accept, **sent}


def make_request(
    method: str,
    path: str,
    *,
    params: Mapping[str, Any] | None = None,
    body: Any = None,
    accept: str = JSON,
    is_read: bool | None = None,
) -> Request:
    """Make a request of a route. `is_read` None: GET, and a POST that only asks."""
    method = method.upper()
    if is_read is None:
        is_read = method in {"GET", "HEAD"} or (method == "POST" and path.endswith(_ASKING))
    query = f"?{urlencode(params, doseq=True)}" if params else ""
    content = None if body is None else write_json(body).encode()
    return Request(method, path + query, content, accept, is_read)


def make_path(*segments: str) -> str:
    """Return `/v1/…` with each segment percent-escaped once.

    Raises SettingsError for an id that no path can hold: what is between takes `..` for the route
    above.
    """
    return "/".join(["/v1", *map(_escape, segments)])


def _escape(segment: str) -> str:
    if segment in {"", ".", ".."}:
        raise SettingsError(f"{segment!r} is no id: no path can hold it")
    try:
        return quote(segment, safe="")
    except UnicodeEncodeError:
        raise SettingsError(f"{segment!r} is no id: it is no text in UTF-8") from None
