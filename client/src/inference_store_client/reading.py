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
from .settings import ClientSettings
from .streaming import Build, stream
from .values.answers import InferenceCount, Page
from .values.inference import InferenceFields

T = TypeVar("T")
_MOST_OF_A_PAGE: Final = 1000


def fetch(kind: type[T], request: Request, settings: ClientSettings) -> Steps[T]:
    """Send a request whose answer is a dataclass."""
    response = yield from exchange(request, settings)
    return decode(kind, _read(read_json, response.content))


def fetch_plain(request: Request, settings: ClientSettings) -> Steps[Mapping[str, Json]]:
    """Send a request whose answer is an object, with doubles as `float`."""
    response = yield from exchange(request, settings)
    return require_object(_read(read_plain, response.content))


def count(question: Question, settings: ClientSettings) -> Steps[int]:
    """Count the matches."""
    answer = yield from fetch(InferenceCount, question.count_request(), settings)
    warn(answer.warnings)
    return answer.count


def read_pages(
    question: Question, build: Build, settings: ClientSettings, *, limit: int | None = None
) -> Deliveries[Page[Any]]:
    """Deliver every page, to the last one."""
    cursor, is_first = None, True
    while is_first or cursor is not None:
        page = yield from read_page(question, build, settings, cursor, limit)
        if is_first:
            warn(page.warnings)
        yield Deliver([page])
        cursor, is_first = page.next, False


def find_first(question: Question, build: Build, settings: ClientSettings) -> Steps[Any]:
    """Return the first match; None: nothing matches."""
    cursor, is_first = None, True
    while is_first or cursor is not None:
        page = yield from read_page(question, build, settings, cursor, 1)
        if page.items:
            return page.items[0]
        cursor, is_first = page.next, False
    return None


def read_sample(
    question: Question, build: Build, settings: ClientSettings, size: int, seed: int
) -> Deliveries[Any]:
    """Deliver a random sample: as a page, or as a stream if it is larger than one."""
    sample = question.take_sample(size, seed)
    if size > _MOST_OF_A_PAGE:
        yield from stream(sample, build, settings)
        return
    page = yield from read_page(sample, build, settings, None, None)
    warn(page.warnings)
    yield Deliver(page.items)


def read_page(
    question: Question,
    build: Build,
    settings: ClientSettings,
    cursor: str | None,
    limit: int | None,
) -> Steps[Page[Any]]:
    """Read one page, after a cursor."""
    response = yield from exchange(question.page_request(cursor, limit), settings)
    page: Page[Any] = decode(Page, _read(read_plain, response.content))
    return replace(page, items=tuple(map(build, page.items)))


def read_list(
    path: str, kind: type[Any], settings: ClientSettings, params: Mapping[str, Any] | None = None
) -> Deliveries[Any]:
    """Deliver the items of a list, page by page."""
    cursor: Mapping[str, str] = {}
    while True:
        request = make_request("GET", path, params={**(params or {}), **cursor})
        page = yield from fetch(kind, request, settings)
        yield Deliver(page.items)
        if page.next is None:
            return
        cursor = {"cursor": page.next}


def read_blob(inference: InferenceFields, name: str, settings: ClientSettings) -> Steps[Blob]:
    """Read a blob: by its link, if there is one that works, else through the api."""
    link = None if inference.urls is None else getattr(inference.urls, name)
    if link is not None:
        try:
            return (yield from read_link(link, settings))
        except (Refused, ConnectionFailed):
            pass  # it has expired, or leads where only the api can go
    return (yield from _read_blob(inference_path(inference, name), settings))


def read_link(link: str, settings: ClientSettings) -> Steps[Blob]:
    """Read a blob by its link, once."""
    once = replace(settings, retries=replace(settings.retries, attempts=1))
    return (yield from _read_blob(link, once))


def read_thumbnail(inference: InferenceFields, edge: int, settings: ClientSettings) -> Steps[Blob]:
    """Read a JPEG whose longer edge has at most so many pixels."""
    return (
        yield from _read_blob(f"{inference_path(inference, 'thumbnail')}?edge={edge}", settings)
    )


def _read_blob(path: str, settings: ClientSettings) -> Steps[Blob]:
    request = Request("GET", path, accept=ANY, may_leave=True)
    response = yield from exchange(request, settings)
    content_type = response.headers.get("content-type", "application/octet-stream")
    return Blob(response.content, content_type)


def inference_path(inference: InferenceFields, *more: str) -> str:
    """Return the path of exactly this inference."""
    return make_path("models", inference.model_id, "inferences", f"uid:{inference.uid}", *more)


def request_any(request: Request, settings: ClientSettings) -> Steps[Json]:
    """Send a request of any route; None if the answer is empty."""
    response = yield from exchange(request, settings)
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
