"""The formats of an export: one list."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from io import UnsupportedOperation
from pathlib import Path
from typing import IO, Any, Final

from inference_store_client.columns import stream_columns
from inference_store_client.commands import Steps
from inference_store_client.csv_records import stream_csv
from inference_store_client.errors import import_extra
from inference_store_client.private_files import NewFile
from inference_store_client.question import Question
from inference_store_client.streaming import Chunk, stream


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


_CURSOR: Final = "cursor"


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format: how its bytes come, what they are made into at the end, and what that needs."""

    stream: Callable[[Question], Steps[None]]
    endings: Sequence[str]
    needs: Mapping[str, str]
    """Modules, and the extra that installs each."""
    convert: Callable[[IO[bytes], str], None] | None = None

    def require(self) -> None:
        """Raise SettingsError if something is not installed: before anything is asked."""
        for name, extra in self.needs.items():
            import_extra(name, extra)

    def finish(self, file: NewFile) -> None:
        """Make the bytes that came into the file."""
        if self.convert is not None:
            file.convert(self.convert)


def find_ending(output: Path) -> str | None:
    """Return the name of the format that the ending of a name says; None: it says none."""
    ending = output.suffix.lower()
    return next((name for name, known in FORMATS.items() if ending in known.endings), None)


def _stream_lines(question: Question) -> Steps[None]:
    """Deliver the inferences as the API shows them, a line each, without cursors."""
    is_uid_asked = question.fields is None or "uid" in question.fields

    def encode(item: dict[str, Any]) -> Chunk:
        del item[_CURSOR]
        if not is_uid_asked:
            del item["uid"]
        return Chunk(json.dumps(item).encode() + b"\n", 1)

    return stream(question, encode)


FORMATS: Final[Mapping[str, ExportFormat]] = {
    "arrow": ExportFormat(stream_columns, (".arrow", ".arrows"), {"nanoarrow": "arrow"}),
    "csv": ExportFormat(stream_csv, (".csv",), {}),
    "jsonl": ExportFormat(_stream_lines, (".jsonl", ".ndjson"), {}),
    "parquet": ExportFormat(
        stream_columns,
        (".parquet",),
        {"nanoarrow": "parquet", "arro3.io": "parquet"},
        write_parquet,
    ),
}
