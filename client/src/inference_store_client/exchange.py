"""One request and its response: redirects, retries, refusals. No I/O."""

from dataclasses import replace
from itertools import count
from typing import Final
from urllib.parse import urljoin

from inference_store_client.values.answers import Problem

from .commands import Close, Failure, Open, Outcome, Read, Renew, Response, Settings, Steps, Wait
from .decoding import decode
from .errors import ConnectionFailed, Redirected, UnexpectedAnswer, make_refusal
from .origin import Origin
from .requests import ANY, Request
from .retries import read_retry_after
from .settings import ClientSettings

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS: Final = 5
TRANSIENT: Final = frozenset({429, 502, 503, 504})
"""The statuses after which a read is sent again."""
_PAGE: Final = "text/html"
_TIMEOUT: Final = "query-timeout"
"""A query that took too long would take too long again."""


def exchange(request: Request) -> Steps[Response]:
    """Send a request, again if it is a read that failed. Raises StoreError for a refusal."""
    retries = (yield from get_settings()).retries
    for attempt in count(1):
        outcome = yield from open_response(request)
        if isinstance(outcome, Response):
            outcome = yield from read_content(outcome)
        if isinstance(outcome, Response):
            return outcome
        wait = retries.find_wait(outcome, attempt) if request.is_read else None
        if wait is None:
            raise outcome.error
        yield Wait(wait)
    raise AssertionError("the number of attempts is bounded")


def get_settings() -> Steps[ClientSettings]:
    """Return the settings of the transport."""
    settings = yield Settings()
    assert isinstance(settings, ClientSettings)
    return settings


def open_response(request: Request) -> Steps[Response | Failure]:
    """Send a request and follow its redirects. The content of a response is still to be read."""
    settings = yield from get_settings()
    if settings.sign_in is not None and settings.sign_in.is_ending:
        renewed = yield Renew()
        if isinstance(renewed, Failure):
            return renewed
    for _ in range(_MOST_REDIRECTS + 1):
        outcome = yield Open(request)
        if not isinstance(outcome, Response):
            return _expect_failure(outcome)
        if outcome.status not in _REDIRECTS:
            return outcome
        yield Close()
        request = _redirect(request, settings.origin, outcome)
    raise Redirected(f"more than {_MOST_REDIRECTS} redirects, the last one to {request.path}")


def open_content(request: Request) -> Steps[Response | Failure]:
    """Send a request whose content is read piece by piece; a refusal becomes a Failure.

    Raises UnexpectedAnswer for a page of a proxy.
    """
    opened = yield from open_response(request)
    if isinstance(opened, Failure):
        return opened
    if not is_success(opened):
        return (yield from read_content(opened))
    kind = opened.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _PAGE and request.accept != ANY:
        beginning = yield Read()
        yield Close()
        content = beginning if isinstance(beginning, bytes) else b""
        answer = replace(opened, content=content)
        raise UnexpectedAnswer(f"the answer is a page of HTML. {name_beginning(answer)}")
    return opened


def read_content(response: Response) -> Steps[Response | Failure]:
    """Read the rest of a response; a refusal becomes a Failure."""
    pieces: list[bytes] = []
    while piece := (yield Read()):
        if not isinstance(piece, bytes):
            yield Close()
            return _expect_failure(piece)
        pieces.append(piece)
    yield Close()
    whole = replace(response, content=b"".join(pieces))
    return whole if is_success(whole) else _refuse(whole)


def is_success(response: Response) -> bool:
    """Return whether the request was carried out."""
    return 200 <= response.status < 300


def _refuse(response: Response) -> Failure:
    problem = _read_problem(response)
    is_transient = problem.status in TRANSIENT and problem.name != _TIMEOUT
    after = read_retry_after(response.headers.get("retry-after", ""))
    return Failure(make_refusal(problem), is_transient, after)


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


def _expect_failure(outcome: Outcome) -> Failure:
    if isinstance(outcome, Failure):
        return outcome
    return Failure(ConnectionFailed(f"the transport answered {outcome!r}"))
