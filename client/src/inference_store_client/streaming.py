"""A stream of lines, each an inference. No I/O.

Each line is delivered once: a line that was cut off is dropped, and comes again after the cursor of
the line before. Without the last line there is an error, never a short result.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any, Final, TypeAlias, TypeVar

from inference_store_client.arrow_batches import ArrowColumn, iterate_columns
from inference_store_client.commands import (
    Close,
    Deliver,
    Deliveries,
    Failure,
    Outcome,
    Read,
    Steps,
    Wait,
)
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
from inference_store_client.exchange import TRANSIENT, get_settings, open_content
from inference_store_client.json_text import write_count
from inference_store_client.question import Question
from inference_store_client.requests import NDJSON, Request
from inference_store_client.tables import Rows
from inference_store_client.values.answers import StreamEnd

# A stream that is resumed until it has its end. No I/O.


@dataclass(slots=True)
class Position:
    """How far a stream has come, over all its connections."""

    most: int | None = None
    """The most that are asked for; None: until the end."""
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

    def move(self, cursor: str) -> None:
        """Continue after this cursor, if the connection breaks."""
        self.cursor, self.moves = cursor, self.moves + 1

    def begin_again(self) -> None:
        """Read from the beginning: all that came is void."""
        self.cursor, self.received, self.head = None, 0, None


MakeRequest = Callable[[str | None], Request]
ReadPart = Callable[[Position], Steps[Failure | None]]
"""Reads what one connection brings; None: that was the end."""


def resume(make_request: MakeRequest, read_part: ReadPart, position: Position) -> Steps[None]:
    """Read a stream to its end, over as many connections as it takes.

    Raises StreamIncomplete, or the refusal of the store.
    """
    attempt, retries = 0, (yield from get_settings()).retries
    while True:
        moves = position.moves
        failure = yield from _read_once(make_request(position.cursor), read_part, position)
        if failure is None:
            return
        attempt = 1 if position.moves > moves else attempt + 1
        wait = retries.find_wait(failure, attempt)
        if wait is None:
            raise _explain(failure.error, position)
        yield Wait(wait)


def _read_once(request: Request, read_part: ReadPart, position: Position) -> Steps[Failure | None]:
    opened = yield from open_content(request)
    if isinstance(opened, Failure):
        return opened
    if not position.has_warned:
        position.has_warned = True
        warn_of_header(opened.headers)
    failure = yield from read_part(position)
    yield Close()
    return failure


def _explain(error: StoreError, position: Position) -> StoreError:
    count = f"{write_count(position.received, 'inference')} had come"
    if not isinstance(error, ConnectionFailed):
        if position.received:
            error.add_note(count)
        return error
    incomplete = StreamIncomplete(f"{error}; {count}, and they are not everything")
    incomplete.__cause__ = error
    return incomplete


T = TypeVar("T")
Build: TypeAlias = Callable[[dict[str, Any]], Any]
"""Makes an inference of a line."""
CUT = "the stream ended without its end"


def stream(question: Question, build: Build) -> Deliveries[Any]:
    """Deliver every match of a question. Raises StreamIncomplete, or the store's refusal."""
    position = Position(question.limit)
    make_request = partial(question.query_request, accept=NDJSON)
    yield from resume(make_request, partial(_read_lines, build), position)


def _read_lines(build: Build, position: Position) -> Steps[Failure | None]:
    decoder, begin = LineDecoder(), position.received
    while True:
        piece = yield Read()
        if isinstance(piece, Failure):
            return piece
        if not piece:
            return Failure(ConnectionFailed(CUT))
        assert isinstance(piece, bytes)
        items: list[Any] = []
        end = _take_lines(map(read_line, decoder.feed(piece)), build, position, items)
        if items:
            yield Deliver(items)
        if end is not None:
            return _finish(end, position, position.received - begin)
        if position.is_full:
            return None


def _take_lines(
    lines: Iterator[dict[str, Any]], build: Build, position: Position, items: list[Any]
) -> StreamEnd | None:
    """Add the inferences of the lines to `items`; return the last line, if it is there."""
    for line in lines:
        if "cursor" not in line:
            return decode(StreamEnd, line)
        position.move(line["cursor"])
        if "uid" in line:  # else it says how far the search has come
            items.append(build(line))
            position.received += 1
        if position.is_full:
            break
    return None


def _finish(end: StreamEnd, position: Position, received: int) -> Failure | None:
    """Return what the last line of a connection says; None: nothing is left."""
    if end.count != received:
        raise UnexpectedAnswer(f"the stream sent {received} inferences and counts {end.count}")
    warn(end.warnings)
    if end.problem is None and end.next is None:
        return None
    position.cursor = end.next or position.cursor
    if end.problem is None:
        return Failure(ConnectionFailed("the store ended the stream before its end"))
    return Failure(make_refusal(end.problem), end.problem.status in TRANSIENT)


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


def take_head(head: bytes, position: Position, *, is_same: bool) -> Steps[bool]:
    """Deliver what a file of columns begins with, once; `is_same`: as the one before.

    False: the columns are others than those before, which are void.
    """
    if position.head is None:
        position.head = head
        yield Deliver([Chunk(head)])
    elif not is_same:
        position.begin_again()
        yield Deliver([RESTART])
        return False
    return True


def collect(steps: Deliveries[T | Restart]) -> Steps[Rows[T]]:
    """Perform steps; return what they deliver after the last RESTART."""
    items: Rows[T] = Rows()

    def take(item: T | Restart) -> None:
        if isinstance(item, Restart):
            items.clear()
        else:
            items.append(item)

    yield from for_each(steps, take)
    return items


def for_each(steps: Deliveries[T], act: Callable[[T], Steps[None] | None]) -> Steps[None]:
    """Perform steps, and act on each item that they deliver, perhaps by further steps."""
    outcome: Outcome = None
    while True:
        try:
            command = steps.send(outcome)
        except StopIteration:
            return
        if isinstance(command, Deliver):
            outcome = None
            for item in command.items:
                if (more := act(item)) is not None:
                    yield from more
        else:
            outcome = yield command


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
    columns = {column.name: _make_series(pandas, column) for column in iterate_columns(content)}
    return pandas.DataFrame(columns)


def make_polars(content: bytes) -> Any:
    """Return a stream of Arrow as a `polars.DataFrame`."""
    return import_extra("polars", "polars").read_ipc_stream(BytesIO(content)).drop("cursor")


def _make_series(pandas: Any, column: ArrowColumn) -> Any:
    return pandas.Series(column.values, dtype=_DTYPES.get(column.type, "object"))
