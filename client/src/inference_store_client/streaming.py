"""A stream of lines, each an inference.

Each line is delivered once: a line that was cut off is dropped, and comes again after the cursor of
the line before. Without the last line there is an error, never a short result.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any, Final, TypeAlias, TypeVar

from inference_store_client.arrow_batches import iterate_columns
from inference_store_client.decoding import decode
from inference_store_client.errors import (
    ConnectionFailed,
    StoreError,
    StreamIncomplete,
    UnexpectedAnswer,
    import_extra,
    make_refusal,
    warn,
    warn_of_header,
)
from inference_store_client.exchange import TRANSIENT, open_content
from inference_store_client.json_text import write_count
from inference_store_client.question import Question
from inference_store_client.requests import NDJSON, Request
from inference_store_client.tables import Rows
from inference_store_client.transport import Response, Transport
from inference_store_client.values.answers import StreamEnd

# A stream that is resumed until it has its end.


@dataclass(slots=True)
class Position:
    """How far a stream has come, over all its connections."""

    most: int | None = None
    """The most that are asked for; None: until the end."""
    noun: str = "inference"
    """What is received."""
    cursor: str | None = None
    received: int = 0
    moves: int = 0
    """Grows with each cursor."""
    head: bytes | None = None
    """What a file of columns began with."""
    has_warned: bool = False

    @property
    def is_full(self) -> bool:
        """Whether as many came as were asked for."""
        return self.most is not None and self.received >= self.most

    def move(self, cursor: str | None = None) -> None:
        """Continue after this cursor, if the connection breaks."""
        self.cursor, self.moves = cursor, self.moves + 1

    def begin_again(self) -> None:
        """Read from the beginning: all that came is void."""
        self.cursor, self.received, self.head = None, 0, None


MakeRequest = Callable[[str | None], Request]
ReadPart = Callable[[Response, Position], AsyncIterator[Any]]
"""Yields what one connection brings. Raises StoreError unless that was the end."""


async def resume(
    transport: Transport, make_request: MakeRequest, read_part: ReadPart, position: Position
) -> AsyncGenerator[Any, None]:
    """Read a stream to its end, over as many connections as it takes.

    Raises StreamIncomplete, or the refusal of the store.
    """
    attempt, retries = 0, transport.settings.retries
    while True:
        moves = position.moves
        try:
            async with open_content(transport, make_request(position.cursor)) as response:
                if not position.has_warned:
                    position.has_warned = True
                    warn_of_header(response.headers)
                async for item in read_part(response, position):
                    yield item
            return
        except StoreError as error:
            if position.is_full:  # a connection may break after all has come
                return
            attempt = 1 if position.moves > moves else attempt + 1
            wait = retries.find_wait(error, attempt)
            if wait is None:
                raise _explain(error, position) from error.__cause__
        await transport.sleep(wait)


def _explain(error: StoreError, position: Position) -> StoreError:
    count = f"{write_count(position.received, position.noun)} had come"
    if not isinstance(error, ConnectionFailed):
        if position.received:
            error.add_note(count)
        return error
    return StreamIncomplete(f"{error}; {count}, and they are not everything")


T = TypeVar("T")
Build: TypeAlias = Callable[[dict[str, Any]], Any]
"""Makes an inference of a line."""
CUT: Final = "the stream ended without its end"


def stream(transport: Transport, question: Question, build: Build) -> AsyncGenerator[Any, None]:
    """Yield every match of a question. Raises StreamIncomplete, or the store's refusal."""
    make_request = partial(question.query_request, accept=NDJSON)
    read_part = partial(_read_lines, build)
    return resume(transport, make_request, read_part, Position(question.limit))


async def _read_lines(build: Build, response: Response, position: Position) -> AsyncIterator[Any]:
    decoder, begin = LineDecoder(), position.received
    async for piece in response.pieces:
        for line in map(read_line, decoder.feed(piece)):
            if "cursor" not in line:
                _check_end(decode(StreamEnd, line), position, position.received - begin)
                return
            position.move(line["cursor"])
            if "uid" in line:  # else it says how far the search has come
                item = build(line)
                position.received += 1
                yield item
            if position.is_full:
                return
    raise ConnectionFailed(CUT)


def _check_end(end: StreamEnd, position: Position, received: int) -> None:
    """Raise StoreError if the last line of a connection says that something is left."""
    if end.count != received:
        raise UnexpectedAnswer(f"the stream sent {received} inferences and counts {end.count}")
    warn(end.warnings)
    if end.problem is None and end.next is None:
        return
    position.cursor = end.next or position.cursor
    if end.problem is None:
        raise ConnectionFailed("the store ended the stream before its end")
    refusal = make_refusal(end.problem)
    refusal.is_transient = end.problem.status in TRANSIENT
    raise refusal


MOST_BYTES: Final = 256 * 1024 * 1024
"""Of one line."""


class LineDecoder:
    """Keeps what is not yet a whole line, which is never returned if it is cut off.

    `is_csv`: a line may go on after a line end that is inside quotes.
    """

    def __init__(self, *, is_csv: bool = False) -> None:
        self._is_csv = is_csv
        self._pieces: list[bytes] = []
        self._size = 0
        self._is_quoted = False

    @property
    def is_within(self) -> bool:
        """Whether a line has begun and has not ended."""
        return self._size > 0

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines that the piece completes, with their ends. Raises UnexpectedAnswer."""
        for line in piece.splitlines(keepends=True):
            self._pieces.append(line)
            self._size += len(line)
            self._is_quoted ^= self._is_csv and bool(line.count(b'"') % 2)
            if line.endswith(b"\n") and not self._is_quoted:
                yield b"".join(self._pieces)
                self._pieces, self._size = [], 0
        if self._size > MOST_BYTES:
            raise UnexpectedAnswer(f"a line of the stream has more than {MOST_BYTES:,} bytes")


def read_line(line: bytes) -> dict[str, Any]:
    """Return the object that a line holds. Raises UnexpectedAnswer."""
    try:
        value = json.loads(line)
    except ValueError as wrong:
        raise UnexpectedAnswer(f"a line of the stream is not JSON: {wrong}") from wrong
    if not isinstance(value, dict):
        raise UnexpectedAnswer("a line of the stream is not an object")
    return value


# Pieces of a file, as a stream delivers them.


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes that come after those before, and how many inferences end in them."""

    content: bytes = field(repr=False)
    count: int = 0


@dataclass(frozen=True, slots=True)
class Restart:
    """What came so far is void, because the columns have changed or bytes were damaged: the file
    begins again."""


RESTART: Final = Restart()


async def take_head(head: bytes, position: Position, *, is_same: bool) -> AsyncIterator[Any]:
    """Yield what a file of columns begins with, once; `is_same`: as the one before.

    Otherwise yield RESTART, since what came before is void, and raise ConnectionFailed.
    """
    if position.head is None:
        position.head = head
        yield Chunk(head)
    elif not is_same:
        position.begin_again()
        yield RESTART
        raise ConnectionFailed("the columns have changed since the stream began")


async def collect(items: AsyncIterable[T | Restart]) -> Rows[T]:
    """Return the items that come after the last RESTART."""
    rows: Rows[T] = Rows()
    async for item in items:
        if isinstance(item, Restart):
            rows.clear()
        else:
            rows.append(item)
    return rows


# Columns as data frames; each library is imported when it is asked for.

_LIBRARIES: Final = {"arrow": "nanoarrow", "pandas": "pandas", "polars": "polars"}
# Types of pandas that hold null, by those of Arrow.
_DTYPES: Final = {
    "int64": "Int64",
    "double": "float64",
    "bool": "boolean",
    "string": "string",
    "timestamp": "datetime64[us, UTC]",
}


def require_frames(extra: str) -> None:
    """Raise SettingsError if the library of a data frame is missing: before anything is asked."""
    for module in dict.fromkeys(("nanoarrow", _LIBRARIES[extra])):
        import_extra(module, extra)


def make_pandas(content: bytes) -> Any:
    """Return a stream of Arrow as a `pandas.DataFrame`."""
    pandas = import_extra("pandas", "pandas")
    series = {
        column.name: pandas.Series(column.values, dtype=_DTYPES.get(column.type, "object"))
        for column in iterate_columns(content)
    }
    return pandas.DataFrame(series)


def make_polars(content: bytes) -> Any:
    """Return a stream of Arrow as a `polars.DataFrame`."""
    return import_extra("polars", "polars").read_ipc_stream(BytesIO(content)).drop("cursor")
