"""What is read, step by step: counts, pages, samples, lists, blobs. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from inference_store_client.errors import warn

from .blob import Blob
from .commands import Deliver, Deliveries, Response, Steps
from .decoding import decode
from .errors import ConnectionFailed, Refused, UnexpectedAnswer
from .exchange import exchange, name_beginning
from .json_text import Json, read_json, read_plain
from .question import MOST_OF_A_PAGE, NEWEST_FIRST, Question
from .requests import ANY, Request, make_path, make_request
from .streaming import Build, collect, for_each, stream
from .times import Time, format_instant, read_time
from .values.answers import InferenceCount, Listing, Page
from .values.inference import InferenceFields

T = TypeVar("T")


def make_overview_request(model_id: str, since: Time | None, until: Time | None) -> Request:
    """Make the request of a model's overview in a window of time."""
    window = {"received_from": since, "received_to": until}
    params = {name: format_instant(read_time(at)) for name, at in window.items() if at is not None}
    return make_request("GET", make_path("models", model_id, "overview"), params=params)


def fetch(kind: type[T], request: Request) -> Steps[T]:
    """Send a request whose answer is a dataclass."""
    response = yield from exchange(request)
    return decode(kind, _read(read_json, response))


def fetch_plain(request: Request) -> Steps[Mapping[str, Json]]:
    """Send a request whose answer is an object, with doubles as `float`."""
    response = yield from exchange(request)
    return require_object(_read(read_plain, response))


def count(question: Question) -> Steps[int]:
    """Count the matches, or as many as the question takes: a few are read, the newest of them in
    place of those it takes, since that needs no look at the others."""
    if question.limit is not None and question.limit <= MOST_OF_A_PAGE:
        few = replace(question, sort=NEWEST_FIRST, seed=None, fields=("uid",))
        return len((yield from collect(read_items(few, dict))))
    answer = yield from fetch(InferenceCount, question.count_request())
    warn(answer.warnings)
    return answer.count if question.limit is None else min(answer.count, question.limit)


def read_all(question: Question, build: Build) -> Deliveries[Any]:
    """Deliver every match: a few as pages, which need no right `export`, else as a stream."""
    if question.limit is None or question.limit > MOST_OF_A_PAGE:
        yield from stream(question, build)
    else:
        yield from read_items(question, build)


def read_items(question: Question, build: Build) -> Deliveries[Any]:
    """Deliver the matches, page by page."""

    def deliver(page: Page[Any]) -> Steps[None]:
        yield Deliver(page.items)

    yield from for_each(read_pages(question, build), deliver)


def read_pages(
    question: Question, build: Build, *, size: int | None = None
) -> Deliveries[Page[Any]]:
    """Deliver every page, to the last one or to the limit."""
    cursor, is_first, left = None, True, question.limit
    while is_first or (cursor is not None and left != 0):
        most = size if left is None else min(left, size or MOST_OF_A_PAGE)
        page = yield from read_page(question, build, cursor, most)
        if is_first:
            warn(page.warnings)
        yield Deliver([page])
        left = None if left is None else left - len(page.items)
        cursor, is_first = page.next, False


def find_first(question: Question, build: Build) -> Steps[Any]:
    """Return the first match; None: nothing matches."""
    page = yield from read_filled_page(question, build, None, 1)
    return page.items[0] if page.items else None


def read_filled_page(
    question: Question, build: Build, cursor: str | None, limit: int
) -> Steps[Page[Any]]:
    """Read the first page after a cursor that has items; without one the last page."""
    while True:
        page = yield from read_page(question, build, cursor, limit)
        if page.items or page.next is None:
            return page
        cursor = page.next


def read_page(
    question: Question,
    build: Build,
    cursor: str | None,
    limit: int | None,
) -> Steps[Page[Any]]:
    """Read one page, after a cursor."""
    response = yield from exchange(question.query_request(cursor, limit=limit))
    page: Page[Any] = decode(Page, _read(read_plain, response))
    return replace(page, items=tuple(map(build, page.items)))


def read_list(
    path: str, kind: type[Listing[T]], params: Mapping[str, Any] | None = None
) -> Deliveries[T]:
    """Deliver the items of a list, page by page."""
    cursor: Mapping[str, str] = {}
    while True:
        request = make_request("GET", path, params={**(params or {}), **cursor})
        page = yield from fetch(kind, request)
        yield Deliver(page.items)
        if page.next is None:
            return
        cursor = {"cursor": page.next}


def read_blob(inference: InferenceFields, name: str) -> Steps[Blob]:
    """Read a blob: by its link, if there is one that works, else through the api."""
    link = None if inference.urls is None else getattr(inference.urls, name)
    if link is not None:
        try:
            return (yield from read_link(link))
        except (Refused, ConnectionFailed):
            pass  # it has expired, or leads where only the api can go
    return (yield from _read_blob(inference_path(inference, name)))


def read_link(link: str) -> Steps[Blob]:
    """Read a blob by its link, once: what the link does not give, the api may."""
    return _read_blob(link, is_read=False)


def read_thumbnail(inference: InferenceFields, edge: int) -> Steps[Blob]:
    """Read a JPEG whose longer edge has at most so many pixels."""
    return _read_blob(f"{inference_path(inference, 'thumbnail')}?edge={edge}")


def _read_blob(path: str, *, is_read: bool = True) -> Steps[Blob]:
    request = Request("GET", path, accept=ANY, may_leave=True, is_read=is_read)
    response = yield from exchange(request)
    content_type = response.headers.get("content-type", "application/octet-stream")
    return Blob(response.content, content_type)


def inference_path(inference: InferenceFields, *more: str) -> str:
    """Return the path of exactly this inference."""
    return make_path("models", inference.model_id, "inferences", f"uid:{inference.uid}", *more)


def request_any(request: Request) -> Steps[Json]:
    """Send a request of any route; None if the answer is empty."""
    response = yield from exchange(request)
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
