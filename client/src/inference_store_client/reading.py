"""What is read, step by step: counts, pages, samples, lists, blobs."""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from inference_store_client.errors import warn

from .blob import Blob
from .decoding import decode
from .errors import ConnectionFailed, Refused, UnexpectedAnswer
from .exchange import exchange, name_beginning
from .json_text import Json, read_json, read_plain
from .question import MOST_OF_A_PAGE, NEWEST_FIRST, Question
from .requests import ANY, Request, make_path, make_request
from .streaming import Build, collect, stream
from .times import Time, format_instant, read_time
from .transport import Response, Transport
from .values.answers import InferenceCount, Listing, Page
from .values.inference import InferenceFields

T = TypeVar("T")


def make_overview_request(model_id: str, since: Time | None, until: Time | None) -> Request:
    """Make the request of a model's overview in a window of time."""
    window = {"received_from": since, "received_to": until}
    params = {name: format_instant(read_time(at)) for name, at in window.items() if at is not None}
    return make_request("GET", make_path("models", model_id, "overview"), params=params)


def make_drift_request(reference: Question, current: Question, more: Mapping[str, Any]) -> Request:
    """Make the request that compares two windows; `more`: members of it that are not None."""
    body: dict[str, Any] = {}
    for name, window in (("reference", reference), ("current", current)):
        body[name] = window.list_conditions()
        body |= {one: body[name].pop(one) for one in ("unknown_keys",) if one in body[name]}
    body |= {name: value for name, value in more.items() if value is not None}
    return make_request("POST", f"{current.path}/drift", body=body)


async def fetch(transport: Transport, kind: type[T], request: Request) -> T:
    """Send a request whose answer is a dataclass."""
    return decode(kind, _read(read_json, await exchange(transport, request)))


async def fetch_plain(transport: Transport, request: Request) -> Mapping[str, Json]:
    """Send a request whose answer is an object, with doubles as `float`."""
    return require_object(_read(read_plain, await exchange(transport, request)))


async def count(transport: Transport, question: Question) -> int:
    """Count the matches, or as many as the question takes: a few are read, the newest of them in
    place of those it takes, since that needs no look at the others."""
    if question.limit is not None and question.limit <= MOST_OF_A_PAGE:
        few = replace(question, sort=NEWEST_FIRST, seed=None, fields=("uid",))
        return len(await collect(read_items(transport, few, dict)))
    answer = await fetch(transport, InferenceCount, question.count_request())
    warn(answer.warnings)
    return answer.count if question.limit is None else min(answer.count, question.limit)


def read_all(transport: Transport, question: Question, build: Build) -> AsyncGenerator[Any, None]:
    """Yield every match: a few as pages, which need no right `export`, else as a stream."""
    is_long = question.limit is None or question.limit > MOST_OF_A_PAGE
    return (stream if is_long else read_items)(transport, question, build)


async def read_items(
    transport: Transport, question: Question, build: Build
) -> AsyncGenerator[Any, None]:
    """Yield the matches, page by page."""
    async for page in read_pages(transport, question, build):
        for item in page.items:
            yield item


async def read_pages(
    transport: Transport, question: Question, build: Build, *, size: int | None = None
) -> AsyncGenerator[Page[Any], None]:
    """Yield every page, to the last one or to the limit."""
    cursor, is_first, left = None, True, question.limit
    while is_first or (cursor is not None and left != 0):
        most = size if left is None else min(left, size or MOST_OF_A_PAGE)
        page = await read_page(transport, question, build, cursor, most)
        if is_first:
            warn(page.warnings)
        yield page
        left = None if left is None else left - len(page.items)
        cursor, is_first = page.next, False


async def find_first(transport: Transport, question: Question, build: Build) -> Any:
    """Return the first match; None: nothing matches."""
    page = await read_filled_page(transport, question, build, None, 1)
    return page.items[0] if page.items else None


async def read_filled_page(
    transport: Transport, question: Question, build: Build, cursor: str | None, limit: int
) -> Page[Any]:
    """Read the first page after a cursor that has items; without one the last page."""
    while True:
        page = await read_page(transport, question, build, cursor, limit)
        if page.items or page.next is None:
            return page
        cursor = page.next


async def read_page(
    transport: Transport, question: Question, build: Build, cursor: str | None, limit: int | None
) -> Page[Any]:
    """Read one page, after a cursor."""
    response = await exchange(transport, question.query_request(cursor, limit=limit))
    page: Page[Any] = decode(Page, _read(read_plain, response))
    return replace(page, items=tuple(map(build, page.items)))


async def read_list(
    transport: Transport,
    path: str,
    kind: type[Listing[T]],
    params: Mapping[str, Any] | None = None,
) -> AsyncGenerator[T, None]:
    """Yield the items of a list, page by page."""
    cursor: Mapping[str, str] = {}
    while True:
        request = make_request("GET", path, params={**(params or {}), **cursor})
        page = await fetch(transport, kind, request)
        for item in page.items:
            yield item
        if page.next is None:
            return
        cursor = {"cursor": page.next}


async def read_blob(transport: Transport, inference: InferenceFields, name: str) -> Blob:
    """Read a blob: by its link, if there is one that works, else through the api."""
    link = None if inference.urls is None else getattr(inference.urls, name)
    if link is not None:
        try:
            return await read_path(transport, link, is_read=False)
        except (Refused, ConnectionFailed):
            pass  # it has expired, or leads where only the api can go
    return await read_path(transport, inference_path(inference, name))


async def read_path(transport: Transport, path: str, *, is_read: bool = True) -> Blob:
    """Read the blob at a path, or at a link: once, since what it does not give, the api may."""
    request = Request("GET", path, accept=ANY, may_leave=True, is_read=is_read)
    response = await exchange(transport, request)
    content_type = response.headers.get("content-type", "application/octet-stream")
    return Blob(response.content, content_type)


def inference_path(inference: InferenceFields, *more: str) -> str:
    """Return the path of exactly this inference."""
    return make_path("models", inference.model_id, "inferences", f"uid:{inference.uid}", *more)


async def request_any(transport: Transport, request: Request) -> Json:
    """Send a request of any route; None if the answer is empty."""
    response = await exchange(transport, request)
    return _read(read_json, response) if response.content else None


def require_object(answer: Json) -> Mapping[str, Json]:
    """Return an answer that is an object. Raises UnexpectedAnswer for another one."""
    if not isinstance(answer, Mapping):
        raise UnexpectedAnswer(f"the answer is a {type(answer).__name__}, not an object")
    return answer


def _read(read: Callable[[bytes], Json], response: Response) -> Json:
    try:
        return read(response.content)
    except (ValueError, RecursionError) as wrong:
        if response.content.lstrip()[:1] in {b"{", b"["}:
            raise UnexpectedAnswer(f"the answer is cut off or damaged: {wrong}") from wrong
        raise UnexpectedAnswer(f"the answer is not JSON. {name_beginning(response)}") from wrong
