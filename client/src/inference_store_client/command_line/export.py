"""`istore export`: writes all inferences that match to a file or a folder, whole or not at all.

The store sends them on the route of a query, as a stream that is resumed. With `--job` the store
writes files (`exports.py`).
"""

import argparse
import json
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import import_module
from io import UnsupportedOperation
from pathlib import Path
from typing import IO, Any, Final

from inference_store_client.columns import stream_columns, stream_csv
from inference_store_client.datasets import FORMATS as DATASETS
from inference_store_client.datasets.writing import make_dataset_request, write_dataset
from inference_store_client.errors import SettingsError, import_extra
from inference_store_client.json_text import write_count
from inference_store_client.private_files import NewFile
from inference_store_client.question import Question
from inference_store_client.streaming import Chunk, Restart, stream
from inference_store_client.transport import Transport, iterate, run

from .arguments import add_columns, add_conditions, add_store, make_question, open_store
from .ending import say
from .exports import JOB_FORMATS, add_job_arguments, refuse_job_options, run_job
from .main import Command

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


# The formats of a file.


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format: how its bytes come, what they are made into at the end, and what that needs."""

    stream: Callable[[Transport, Question], AsyncGenerator[Any, None]]
    endings: Sequence[str]
    needs: Mapping[str, str]
    """Modules, and the extra that installs each."""
    convert: Callable[[IO[bytes], str], None] | None = None
    """Makes the bytes that came into the file."""


def find_ending(output: Path) -> str | None:
    """Return the name of the format that the ending of a name says; None: it says none."""
    ending = output.suffix.lower()
    return next((name for name, known in FORMATS.items() if ending in known.endings), None)


def _stream_lines(transport: Transport, question: Question) -> AsyncGenerator[Any, None]:
    """Yield the inferences as the API shows them, a line each, without cursors."""
    is_uid_asked = question.fields is None or "uid" in question.fields

    def encode(item: dict[str, Any]) -> Chunk:
        del item[_CURSOR]
        if not is_uid_asked:
            del item["uid"]
        return Chunk(json.dumps(item).encode() + b"\n", 1)

    return stream(transport, question, encode)


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


# How far an export is, on standard error.

_PAUSE_SECONDS: Final = 0.2


class Progress:
    """Counts what came, and shows it on a terminal a few times a second."""

    def __init__(self) -> None:
        self._count = self._bytes = 0
        self._begun = time.monotonic()
        self._shown: float | None = None

    def accept(self, item: Chunk | Restart) -> None:
        """Count a piece of the file."""
        if isinstance(item, Restart):
            self._count = self._bytes = 0
            return
        self._count += item.count
        self._bytes += len(item.content)
        now = time.monotonic()
        if sys.stderr.isatty() and now - (self._shown or self._begun) >= _PAUSE_SECONDS:
            self._shown = now
            self._write(f"\r{self.describe()} \x1b[K")

    def describe(self) -> str:
        """Return how much has come, in how long."""
        seconds = time.monotonic() - self._begun
        count = write_count(self._count, "inference")
        return f"{count}, {self._bytes / 1e6:,.1f} MB received, {seconds:.1f} s"

    def close(self) -> None:
        """Leave no line of it on the terminal."""
        if self._shown is not None:
            self._write("\r\x1b[K")

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


_ALL: Final = sorted({*FORMATS, *DATASETS, *JOB_FORMATS})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_conditions(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the file to write; of a dataset of pictures, and with --job: the new folder",
    )
    parser.add_argument(
        "--format",
        choices=_ALL,
        help="default: as the name of -o ends; a job whose name says none writes parquet",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace the file if it is there; never a folder"
    )
    add_columns(parser)
    add_job_arguments(parser)
    add_store(parser)


def run_export(options: argparse.Namespace) -> int:
    """Write the file. It appears when it is whole."""
    if str(options.output) == "-":
        raise SettingsError("- is no ordinary file: name one; `query` prints lines of JSON")
    if options.force and (options.job or options.format in DATASETS):
        raise SettingsError(f"--force replaces a file alone: remove {options.output} first")
    if options.job:
        return run_job(options, options.format or find_ending(options.output))
    refuse_job_options(options)
    if options.format in {*JOB_FORMATS} - {*FORMATS, *DATASETS}:
        raise SettingsError(f"--format {options.format}: only the store writes it; add --job")
    if options.format in DATASETS:
        return _write_dataset(options)
    export_format = FORMATS[options.format or _find_format(options.output)]
    for name, extra in export_format.needs.items():  # before anything is asked
        import_extra(name, extra)
    _check_output(options.output, force=options.force)
    question = make_question(options, options.columns)
    with (
        open_store(options) as store,
        closing(Progress()) as progress,
        closing(NewFile(options.output)) as file,
    ):
        for chunk in iterate(export_format.stream(store._transport, question)):
            if isinstance(chunk, Restart):
                file.begin_again()
            else:
                file.write(chunk.content)
            progress.accept(chunk)
        if export_format.convert is not None:
            file.convert(export_format.convert)
        file.publish()
    say(f"{progress.describe()}: {options.output}")
    return 0


def _write_dataset(options: argparse.Namespace) -> int:
    """Write pictures and predictions to a new folder, which appears when it is whole."""
    if options.columns is not None:
        raise SettingsError("a dataset has no columns: leave --columns out")
    request = make_dataset_request(options.format, options.output, None)
    with open_store(options) as store, closing(Progress()) as progress:
        request = replace(request, on_added=lambda data: progress.accept(Chunk(data, 1)))
        summary = run(write_dataset(store._transport, make_question(options), request))
    say(f"{progress.describe()}\n{summary}")
    return 0


def _find_format(output: Path) -> str:
    """Return the format that the ending of a name says."""
    ending = find_ending(output)
    if ending is None:
        raise SettingsError(f"{output} does not say its format: --format {'|'.join(_ALL)}")
    return ending


def _check_output(path: Path, *, force: bool) -> None:
    if not path.parent.is_dir():
        raise SettingsError(f"{path.parent} is no folder: make it first")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise SettingsError(f"{path} is no ordinary file: give another name")
    if path.exists() and not force:
        raise SettingsError(f"{path} exists: --force replaces it")


EXPORT: Final = Command(add_arguments, run_export)
