"""What is read, step by step: counts, pages, samples, lists, blobs. No I/O."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from inference_store_client.errors import warn

from .blob import Blob
from .commands import Deliver, Deliveries, Steps
from .decoding import decode
from .errors import ConnectionFailed, Refused, UnexpectedAnswer
from .exchange import exchange, name_beginning
from .json_text import Json, read_json, read_plain
from .question import Question
from .requests import ANY, Request, make_path, make_request
from .streaming import Build, stream
from .values.answers import InferenceCount, Listing, Page
from .values.inference import InferenceFields

T = TypeVar("T")
_MOST_OF_A_PAGE: Final = 1000


def fetch(kind: type[T], request: Request) -> Steps[T]:
    """Send a request whose answer is a dataclass."""
    response = yield from exchange(request)
    return decode(kind, _read(read_json, response.content))


def fetch_plain(request: Request) -> Steps[Mapping[str, Json]]:
    """Send a request whose answer is an object, with doubles as `float`."""
    response = yield from exchange(request)
    return require_object(_read(read_plain, response.content))


def count(question: Question) -> Steps[int]:
    """Count the matches."""
    answer = yield from fetch(InferenceCount, question.count_request())
    warn(answer.warnings)
    return answer.count


def read_pages(
    question: Question, build: Build, *, limit: int | None = None
) -> Deliveries[Page[Any]]:
    """Deliver every page, to the last one."""
    cursor, is_first = None, True
    while is_first or cursor is not None:
        page = yield from read_page(question, build, cursor, limit)
        if is_first:
            warn(page.warnings)
        yield Deliver([page])
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


def read_sample(question: Question, build: Build, size: int, seed: int) -> Deliveries[Any]:
    """Deliver a random sample: as a page, or as a stream if it is larger than one."""
    sample = question.take_sample(size, seed)
    if size > _MOST_OF_A_PAGE:
        yield from stream(sample, build)
        return
    page = yield from read_page(sample, build, None, None)
    warn(page.warnings)
    yield Deliver(page.items)


def read_page(
    question: Question,
    build: Build,
    cursor: str | None,
    limit: int | None,
) -> Steps[Page[Any]]:
    """Read one page, after a cursor."""
    response = yield from exchange(question.page_request(cursor, limit))
    page: Page[Any] = decode(Page, _read(read_plain, response.content))
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
    return _read(read_json, response.content) if response.content else None


def require_object(answer: Json) -> Mapping[str, Json]:
    """Return an answer that is an object. Raises UnexpectedAnswer for another one."""
    if not isinstance(answer, Mapping):
        raise UnexpectedAnswer(f"the answer is a {type(answer).__name__}, not an object")
    return answer


def _read(read: Callable[[bytes], Json], content: bytes) -> Json:
    try:
        return read(content)
    except (ValueError, RecursionError) as wrong:
        if content.lstrip()[:1] in {b"{", b"["}:
            raise UnexpectedAnswer(f"the answer is cut off or damaged: {wrong}") from wrong
        raise UnexpectedAnswer(f"the answer is not JSON. {name_beginning(content)}") from wrong
