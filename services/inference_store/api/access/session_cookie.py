"""The cookie of a session, and when it counts.

A browser sends it with what any page asks. So it counts only for a request of a page that the api
itself served, and for a change only with a header that no form can send.
"""

from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from inference_store.api.browsers import CHANGES_NOTHING, get_host
from inference_store.inference.errors import Unauthorized

# `__Host-`: a browser takes it only with Secure, for this host alone, and for all its paths. Over
# plain HTTP it takes it from loopback alone.
COOKIE: Final = "__Host-inference-store-session"
HEADER: Final = "X-Inference-Store-Console"
WATCHING: Final = "watch"
"""The value of the header if a page only looks whether its session goes on."""


def read_cookie(request: Request) -> str | None:
    """Return the id in the cookie, whether it counts or not; None if there is none."""
    return request.cookies.get(COOKIE) or None


def find_session_id(request: Request) -> str | None:
    """Return the id of the session that a request is made in; None if it is made in none, or with a
    key or token. Raises Unauthorized if the cookie does not count."""
    id = read_cookie(request)
    if id is None or "Authorization" in request.headers:
        return None
    if not _is_of_own_page(request.headers):
        raise Unauthorized("A session counts only for what its own page asks.")
    if request.method not in CHANGES_NOTHING and request.headers.get(HEADER) != "1":
        raise Unauthorized(f"A session changes nothing without the header `{HEADER}: 1`.")
    return id


def is_watching(request: Request) -> bool:
    """Return whether a page only looks whether its session goes on: that must not prolong it."""
    return request.headers.get(HEADER) == WATCHING


def get_own_host(request: Request) -> str:
    """Return the host and port that the request names."""
    return request.headers.get("host", "").lower()


def _is_of_own_page(headers: Headers) -> bool:
    """Return whether a page of the same origin asks, as the browser says."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    return origin is not None and get_host(origin) == headers.get("host", "").lower()


def set_cookie(
    response: Response, value: str, *, name: str = COOKIE, seconds: int | None = None
) -> None:
    """Give a browser a value that no script can read; None: until the browser is closed."""
    response.set_cookie(
        name, value, max_age=seconds, path="/", secure=True, httponly=True, samesite="lax"
    )


def clear_cookie(response: Response, *, name: str = COOKIE) -> None:
    """Make a browser forget a value."""
    response.delete_cookie(name, path="/", secure=True, httponly=True, samesite="lax")
