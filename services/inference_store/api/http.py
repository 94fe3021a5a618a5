"""Parts of HTTP: types and codings (RFC 9110), ranges, ids in paths, bodies with exact numbers.

Answers are compressed as Accept-Encoding allows. A stream is flushed piece by piece, so that a
reader gets each line as early as it would without compression.
"""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial
from typing import Annotated, Any, Final, ParamSpec, TypeVar
from urllib.parse import quote, unquote_to_bytes

import cramjam
from fastapi import Path
from pydantic import AfterValidator
from pydantic_core import PydanticUndefined
from starlette.datastructures import MutableHeaders
from starlette.middleware.gzip import IdentityResponder
from starlette.requests import Request
from starlette.types import Message, Send

from inference_store.export.formats import FORMATS
from inference_store.inference.errors import NotJson, RangeNotSatisfiable, TooLarge
from inference_store.inference.json_text import exact_json
from inference_store.inference.layout import check_id

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
ANY: Final = "*/*"
BYTES: Final = "application/octet-stream"
CODINGS: Final = {"zstd": cramjam.zstd, "gzip": cramjam.gzip}
"""The content codings that answers are compressed with; the first is preferred."""
_SPELLINGS: Final = {"x-gzip": "gzip"}
_MOST_REMEMBERED: Final = 64


@lru_cache(_MOST_REMEMBERED)  # clients send few different headers
def choose_type(accept: str, offered: tuple[str, ...]) -> str | None:
    """Return the media type to answer with, out of `offered`; None: none is accepted."""
    ranges = list(_iterate_ranges(accept or ANY))
    ranks = {kind: _rank(kind, ranges) for kind in offered}
    best = max(offered, key=lambda kind: ranks[kind])
    return best if ranks[best][0] > 0 else None


@lru_cache(_MOST_REMEMBERED)
def choose_coding(accept_encoding: str) -> str | None:
    """Return the content coding to answer with; None: no coding."""
    qualities = {
        _SPELLINGS.get(name, name): quality for name, quality in _iterate_ranges(accept_encoding)
    }
    others = qualities.get("*", 0.0)
    best = max(CODINGS, key=lambda name: qualities.get(name, others))
    quality = qualities.get(best, others)
    return best if quality > 0 and quality >= qualities.get("identity", 0.0) else None


def _rank(kind: str, ranges: Sequence[tuple[str, float]]) -> tuple[float, int, int]:
    """Return quality, precision and place in the header, the first the greatest, of the most
    precise range alone: `*/*;q=0.1, text/html;q=0` accepts no HTML."""
    patterns = (ANY, f"{kind.partition('/')[0]}/*", kind.partition(";")[0].strip().lower())
    ranks = [
        (patterns.index(name), -number, quality)
        for number, (name, quality) in enumerate(ranges)
        if name in patterns
    ]
    precision, before, quality = max(ranks, default=(0, 0, 0.0))
    return quality, precision, before


def _iterate_ranges(header: str) -> Iterator[tuple[str, float]]:
    for item in header.split(","):
        name, *parameters = item.split(";")
        if name.strip():
            yield name.strip().lower(), _read_quality(parameters)


def _read_quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            try:
                quality = float(value)
            except ValueError:
                return 0.0
            return quality if 0 <= quality <= 1 else 0.0
    return 1.0


_RANGE: Final = re.compile(r"bytes\s*=\s*([0-9]{0,18})-([0-9]{0,18})\s*", re.ASCII | re.IGNORECASE)


def read_range(header: str, size: int) -> tuple[int, int] | None:
    """Return the first byte of the range, and the one after its last; None: all bytes.

    All bytes are the answer to several ranges and to what is no range, as the RFC allows. Raises
    RangeNotSatisfiable.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or match[1] == match[2] == "":
        return None
    if not match[1]:  # the last bytes
        begin, end = max(0, size - int(match[2])), size
    else:
        begin, end = int(match[1]), int(match[2] or size) + (match[2] != "")
        if match[2] and end <= begin:
            return None
    if begin >= size:
        raise RangeNotSatisfiable(size)
    return begin, min(end, size)


def decode_segment(segment: str) -> str:
    """Return the id that a segment of the path spells. Raises ValueError."""
    try:
        name = unquote_to_bytes(segment.encode("latin-1")).decode("utf-8")
    except UnicodeError:
        raise ValueError("the id is not UTF-8 in percent escapes") from None
    return check_id(name)


def escape_segment(name: str) -> str:
    """Return an id as one segment of a path."""
    return quote(name, safe="")


ProjectId = Annotated[
    str,
    Path(description="The project's id, percent-escaped.", examples=["warehouse"]),
    AfterValidator(decode_segment),
]
OF_MODEL: Final = "/models/{model_id}"
INFERENCES: Final = f"{OF_MODEL}/inferences"
INFERENCE: Final = f"{INFERENCES}/{{inference_id}}"
ModelId = Annotated[
    str,
    Path(description="The model's id, percent-escaped.", examples=["hallway-detector"]),
    AfterValidator(decode_segment),
]
InferenceId = Annotated[
    str,
    Path(
        description="The inference's id, percent-escaped, an alias of it, or `uid:<uuid>`. If"
        " several inferences share the id, the newest is meant.",
        examples=["uid:019ac3f2-7c00-8123-9abc-0123456789ab", "request-17"],
    ),
    AfterValidator(decode_segment),
]


_P = ParamSpec("_P")
_T = TypeVar("_T")


async def read_in_thread(read: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Return or raise what `read` does, when its turn comes, beside the event loop.

    There is one thread, not several: each that computes makes the loop wait for the interpreter's
    lock. If the caller leaves before, it never begins.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_thread(), partial(read, *args, **kwargs))


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="reading")


MOST_ITEMS: Final = 20_000
"""Commas and opening brackets of a body: no more are parsed, whatever the body would be refused for
then."""
_SMALL_BODY = 64 * 1024
_JSON_TYPE: Final = re.compile(r"\s*application/([^/;]*\+)?json\s*(;.*)?", re.ASCII | re.IGNORECASE)


class ExactRequest(Request):
    """A request whose body is read within the limit, with exact numbers."""

    async def load(self, limit: int) -> int:
        """Read the body, and return how many bytes it has.

        Raises TooLarge as soon as it exceeds `limit` bytes, or if it has more items than any body
        may have.
        """
        pieces, size = [], 0
        async for piece in self.stream():
            size += len(piece)
            if size > limit:
                raise TooLarge(f"The body is over {limit:,} bytes.")
            pieces.append(piece)
        self._body = b"".join(pieces)
        if sum(map(self._body.count, (b",", b"[", b"{"))) > MOST_ITEMS:
            raise TooLarge(f"The body has over {MOST_ITEMS:,} items: commas, `[` and `{{`.")
        return size

    async def read_content(self) -> Any:
        """Return what the JSON of the body says, or the bytes of a body of another type; a number
        with a point or many digits is a Decimal. Raises NotJson."""
        body = self._body
        if not _JSON_TYPE.fullmatch(self.headers.get("Content-Type", "")):
            return body or PydanticUndefined
        try:
            if len(body) > _SMALL_BODY:
                return await read_in_thread(exact_json, body)
            return exact_json(body) if body else PydanticUndefined
        except json.JSONDecodeError as exc:
            raise NotJson(f"The body is not JSON, at character {exc.pos}: {exc.msg}.") from None


_LEAST_BYTES: Final = 1024  # a smaller answer fits into one packet as it is
_LARGE_BYTES: Final = 256 * 1024  # this takes about a millisecond: not on the event loop
# Higher levels save a tenth of the bytes, for twice the time.
_LEVEL: Final = 1
# Pictures, audio and archives are compressed already.
_TYPES: Final = (
    *("text/", "application/json", "application/x-ndjson", "application/problem+json"),
    *("application/javascript", "image/svg+xml", *FORMATS),
)


class Compressed(IdentityResponder):
    """Sends an answer, its text in a coding: Starlette's, which keeps what needs no compression."""

    def __init__(self, send: Send, coding: str) -> None:
        none: Any = None  # it wraps no app: its caller calls one
        super().__init__(none, _LEAST_BYTES, exclude_content_types=("text/event-stream",))
        self.send = send
        self.content_encoding = coding
        self._compressor: Any = None

    async def send_with_compression(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            kind, tag = headers.get("Content-Type", "").lower(), headers.get("ETag", "")
            if not kind.startswith(_TYPES):
                self.exclude_content_types = (kind.partition(";")[0].strip(),)
            elif message["status"] == 200 and "Accept-Ranges" in headers and tag.startswith('"'):
                # these are other bytes: no range of them is asked for by it
                headers["ETag"] = f"W/{tag}"
        await super().send_with_compression(message)

    async def apply_compression(self, body: bytes, *, more_body: bool) -> bytes:
        if len(body) < _LARGE_BYTES:
            return self._compress(body, more_body)
        return await asyncio.to_thread(self._compress, body, more_body)

    def _compress(self, body: bytes, more_body: bool) -> bytes:
        if self._compressor is None:  # most answers are small
            self._compressor = CODINGS[self.content_encoding].Compressor(_LEVEL)
        self._compressor.compress(body)
        return bytes(self._compressor.flush() if more_body else self._compressor.finish())
