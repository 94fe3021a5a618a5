"""One request and its response: redirects, retries, refusals."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Final
from urllib.parse import urljoin

from inference_store_client.values.answers import Problem

from .decoding import decode
from .errors import Redirected, StoreError, UnexpectedAnswer, make_refusal
from .origin import Origin
from .requests import ANY, Request
from .settings import read_retry_after
from .transport import Response, Transport

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS: Final = 5
TRANSIENT: Final = frozenset({429, 502, 503, 504})
"""The statuses after which a read is sent again."""
_PAGE: Final = "text/html"
_TIMEOUT: Final = "query-timeout"
"""A query that took too long would take too long again."""


async def exchange(transport: Transport, request: Request) -> Response:
    """Send a request, again if it is a read that failed. Raises StoreError for a refusal."""
    for attempt in count(1):
        try:
            async with _open_response(transport, request) as response:
                return await _read_whole(response)
        except StoreError as error:
            wait = transport.settings.retries.find_wait(error, attempt)
            if wait is None or not request.is_read:
                raise
        await transport.sleep(wait)
    raise AssertionError("the number of attempts is bounded")


@asynccontextmanager
async def _open_response(transport: Transport, request: Request) -> AsyncIterator[Response]:
    """Send a request and follow its redirects."""
    for _ in range(_MOST_REDIRECTS + 1):
        async with transport.open(request) as response:
            if response.status not in _REDIRECTS:
                yield response
                return
        request = _redirect(request, transport.settings.origin, response)
    raise Redirected(f"more than {_MOST_REDIRECTS} redirects, the last one to {request.path}")


@asynccontextmanager
async def open_content(transport: Transport, request: Request) -> AsyncIterator[Response]:
    """Send a request whose content is read piece by piece.

    Raises the refusal, or UnexpectedAnswer for a page of a proxy.
    """
    async with _open_response(transport, request) as response:
        if not _is_success(response):
            await _read_whole(response)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == _PAGE and request.accept != ANY:
            answer = replace(response, content=await anext(response.pieces, b""))
            raise UnexpectedAnswer(f"the answer is a page of HTML. {name_beginning(answer)}")
        yield response


async def _read_whole(response: Response) -> Response:
    """Return a response with its content. Raises Refused."""
    whole = replace(response, content=b"".join([piece async for piece in response.pieces]))
    if _is_success(whole):
        return whole
    problem = _read_problem(whole)
    refusal = make_refusal(problem)
    refusal.is_transient = problem.status in TRANSIENT and problem.name != _TIMEOUT
    refusal.retry_after_seconds = read_retry_after(whole.headers.get("retry-after", ""))
    raise refusal


def _is_success(response: Response) -> bool:
    return 200 <= response.status < 300


def _read_problem(response: Response) -> Problem:
    try:
        return decode(Problem, response.json())
    except (ValueError, UnexpectedAnswer):
        return Problem(
            type="about:blank",
            title="An answer that is not the API's",
            status=response.status,
            detail=name_beginning(response),
            errors=(),
        )


def name_beginning(response: Response) -> str:
    """Return how an answer begins that is not the API's: a sign-in page, or an error of a proxy."""
    beginning = response.content[:200].decode("utf-8", "replace")
    return f"Is the store at {response.url}? Its answer begins: {beginning!r}"


def _redirect(request: Request, origin: Origin, response: Response) -> Request:
    """Return the request to send instead. Raises Redirected."""
    location = response.headers.get("location", "")
    try:
        target = urljoin(origin.make_url(request.path), location)
    except ValueError:
        raise Redirected(f"the store redirects to {location!r}, which is no address") from None
    if not origin.has(target) and not request.may_leave:
        raise Redirected(
            f"the store sends us to {target}, another origin, where a key is not sent: if you"
            " trust it, give its address as the url"
        )
    if request.method != "GET" and response.status not in {307, 308}:
        raise Redirected(f"the store answers {request.method} with a redirect to {target}")
    return replace(request, path=target)
