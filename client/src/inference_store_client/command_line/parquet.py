"""Arrow as Parquet, written with arro3."""

from collections.abc import Iterator
from importlib import import_module
from io import UnsupportedOperation
from typing import IO, Any, Final

_CURSOR: Final = "cursor"


class _Sink:
    """A file whose first error is raised later, as is Ctrl-C: arro3 panics at one, and prints that,
    or turns it into an error of its own."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._error: BaseException | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the rest need not be written."""
        return self._error is not None

    def fail(self, error: BaseException) -> None:
        """Write no more, and raise the error later."""
        self._error = self._error or error

    def write(self, content: bytes) -> int:
        """Write, unless that has failed before."""
        try:
            if self._error is None:
                self._file.write(content)
        except BaseException as error:
            self.fail(error)
        return len(content)

    def flush(self) -> None:
        """Leave it to the end: closing the file raises what it cannot write."""

    def seek(self, *_: int) -> int:
        """Refuse: arro3 asks whether it is there, and a writer never seeks."""
        raise UnsupportedOperation("seek")

    def check(self) -> None:
        """Raise the error, if there was one."""
        if self._error is not None:
            raise self._error


def write_parquet(source: IO[bytes], target: str) -> None:
    """Write Arrow as Parquet, batch by batch, without the column of cursors."""
    arro3_io: Any = import_module("arro3.io")
    arro3_core: Any = import_module("arro3.core")
    reader = arro3_io.read_ipc_stream(source)
    names = [name for name in reader.schema.names if name != _CURSOR]
    first = arro3_core.Table.from_batches([], schema=reader.schema).select(names).schema
    with open(target, "wb") as file:
        sink = _Sink(file)
        batches = _select(reader, names, sink)
        chosen = arro3_core.RecordBatchReader.from_batches(first, batches)
        try:
            arro3_io.write_parquet(chosen, sink, compression="zstd(3)")
        finally:
            sink.check()


def _select(reader: Any, names: list[str], sink: _Sink) -> Iterator[Any]:
    try:
        for batch in reader:
            if sink.has_failed:
                return
            yield batch.select(names)
    except GeneratorExit:
        raise
    except BaseException as error:
        sink.fail(error)
