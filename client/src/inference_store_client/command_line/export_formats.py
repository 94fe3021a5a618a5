"""The formats of an export: one list."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

from inference_store_client.chunks import Chunk
from inference_store_client.columns import stream_columns
from inference_store_client.commands import Steps
from inference_store_client.csv_records import stream_csv
from inference_store_client.errors import SettingsError
from inference_store_client.extras import import_extra
from inference_store_client.question import Question
from inference_store_client.settings import ClientSettings
from inference_store_client.streaming import stream

from .new_file import NewFile
from .parquet import write_parquet

FileFormat: TypeAlias = Literal["arrow", "csv", "jsonl", "parquet"]
_Columns: TypeAlias = Callable[[Question, ClientSettings, Sequence[str] | None], Steps[None]]
_CURSOR: Final = "cursor"


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format: how its bytes come, what they are made into at the end, and what that needs."""

    stream: Callable[[Question, ClientSettings], Steps[None]]
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


def find_format(name: FileFormat | None, output: Path) -> ExportFormat:
    """Return the format of a name, else of the file's ending."""
    if name is not None:
        return FORMATS[name]
    ending = find_ending(output)
    if ending is not None:
        return FORMATS[ending]
    raise SettingsError(f"{output} does not say its format: --format {'|'.join(sorted(FORMATS))}")


def find_ending(output: Path) -> FileFormat | None:
    """Return the name of the format that the ending of a name says; None: it says none."""
    ending = output.suffix.lower()
    return next((name for name, known in FORMATS.items() if ending in known.endings), None)


def _stream_lines(question: Question, settings: ClientSettings) -> Steps[None]:
    """Deliver the inferences as the API shows them, a line each, without cursors."""
    is_uid_asked = question.fields is None or "uid" in question.fields

    def encode(item: dict[str, Any]) -> Chunk:
        del item[_CURSOR]
        if not is_uid_asked:
            del item["uid"]
        return Chunk(json.dumps(item).encode() + b"\n", 1)

    return stream(question, encode, settings)


def _as_columns(read: _Columns) -> Callable[[Question, ClientSettings], Steps[None]]:
    return lambda question, settings: read(
        replace(question, fields=None), settings, question.fields
    )


FORMATS: Final[Mapping[FileFormat, ExportFormat]] = {
    "arrow": ExportFormat(
        _as_columns(stream_columns), (".arrow", ".arrows"), {"nanoarrow": "arrow"}
    ),
    "csv": ExportFormat(_as_columns(stream_csv), (".csv",), {}),
    "jsonl": ExportFormat(_stream_lines, (".jsonl", ".ndjson"), {}),
    "parquet": ExportFormat(
        _as_columns(stream_columns),
        (".parquet",),
        {"nanoarrow": "parquet", "arro3.io": "parquet"},
        write_parquet,
    ),
}
