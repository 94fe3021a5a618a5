"""Exports that the store carries out: requested, waited for, their parts downloaded. No I/O."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from .chunks import Restart
from .commands import Steps, Wait
from .disk_errors import name_target
from .errors import ExportFailed, SettingsError
from .instants import format_duration
from .new_folder import NewFolder
from .plurals import write_count
from .question import NEWEST_FIRST, Question
from .reading import fetch, read_list, request_any
from .requests import Request, make_path, make_request
from .settings import ClientSettings
from .values.exports import (
    ENDED,
    ErasedMemberPage,
    ExportBlobs,
    ExportFields,
    ExportFormat,
    ExportPart,
    ExportPartPage,
)

T = TypeVar("T", bound=ExportFields)
Build = Callable[[Any], T]
_FIRST_WAIT_SECONDS: Final = 0.2
_LONGEST_WAIT_SECONDS: Final = 5.0
_SUFFIXES: Final = {
    "parquet": ".parquet",
    "arrow": ".arrows",
    "csv": ".csv",
    "jsonl": ".jsonl",
    "webdataset": ".tar",
    "chariot": ".chariot.jsonl",
}
_INCLUDED: Final = ("metadata", "predictions")


def make_export_request(
    question: Question,
    format: ExportFormat,
    *,
    blobs: ExportBlobs | None,
    expires_in: str | timedelta | None,
    confirm: bool,
) -> Request:
    """Make the request for an export of a question. Raises SettingsError for one that an export
    cannot answer: it has all inferences of one model that match, in order of time."""
    if question.models or not question.path.startswith(make_path("models") + "/"):
        raise SettingsError("an export is of one model: call `export` on its inferences")
    for name, is_given in {
        "sort": question.sort != NEWEST_FIRST,
        "inference_ids": question.inference_ids is not None,
        "unknown_keys": question.unknown_keys != "refuse",
        "sample": question.sample is not None,
        "fields": question.fields is not None,
    }.items():
        if is_given:
            raise SettingsError(f"an export has no `{name}`: leave it out, or stream instead")
    if others := [name for name in question.include if name not in _INCLUDED]:
        raise SettingsError(
            f"an export cannot `include` {', '.join(others)}: leave it out; for links to the blobs"
            ' give blobs="links"'
        )
    body = {
        **question.list_conditions(),
        "format": format,
        "include": list(question.include),
        "confirm": confirm,
    }
    ends = format_duration(expires_in) if isinstance(expires_in, timedelta) else expires_in
    more = {"blobs": blobs, "expires_in": ends}
    body |= {name: value for name, value in more.items() if value is not None}
    path = question.path.removesuffix("/inferences") + "/exports"
    return make_request("POST", path, body=body)


def read_export(request: Request, build: Build[T], settings: ClientSettings) -> Steps[T]:
    """Send a request whose answer is an export."""
    return build((yield from request_any(request, settings)))


def wait_until_written(id: UUID, build: Build[T], settings: ClientSettings) -> Steps[T]:
    """Wait until every part is written. Raises ExportFailed if that will never be."""
    waits = _list_waits()
    request = make_request("GET", make_path("exports", str(id)))
    while True:
        export = yield from read_export(request, build, settings)
        if export.state in ENDED:
            break
        yield Wait(next(waits))
    if export.state != "done":
        raise ExportFailed(f"the export {id} is {export.state}: {_explain_end(export)}")
    return export


def _explain_end(export: ExportFields) -> str:
    """Return why an export that has ended is not there as a whole, and the remedy."""
    if export.state == "stale":
        deleted, lost = export.parts_deleted, export.inferences_deleted
        return (
            f"an erasure deleted {write_count(deleted, 'part')} of it, with"
            f" {write_count(lost, 'inference')}; `restart()` or `istore exports restart"
            f" {export.id}` starts it again"
        )
    return export.error or "its parts are deleted"


def wait_for_parts(
    id: UUID, build: Build[T], settings: ClientSettings
) -> Steps[tuple[T, list[ExportPart]]]:
    """Wait until an export is done; return it with its parts. Raises as `wait_until_written`."""
    export = yield from wait_until_written(id, build, settings)
    parts = yield from list_parts(id, settings)
    if len(parts) < export.parts or any(part.state != "written" for part in parts):
        # A part is empty; or an erasure or the end of the export came after it was seen done.
        export = yield from wait_until_written(id, build, settings)
    return export, parts


def _list_waits() -> Iterator[float]:
    """Yield ever longer waits in seconds, without end."""
    seconds = _FIRST_WAIT_SECONDS
    while True:
        yield seconds
        seconds = min(2 * seconds, _LONGEST_WAIT_SECONDS)


def list_parts(id: UUID, settings: ClientSettings) -> Steps[list[ExportPart]]:
    """Return every part. The store notes that the caller was given links."""
    parts: list[ExportPart] = []
    params: dict[str, str] = {}
    while True:
        request = make_request("GET", make_path("exports", str(id), "parts"), params=params)
        page = yield from fetch(ExportPartPage, request, settings)
        parts += page.items
        if page.next is None:
            return parts
        params = {"cursor": page.next}


def list_erased(id: UUID, settings: ClientSettings) -> Steps[None]:
    """Deliver what erasures took of an export, page by page."""
    return read_list(make_path("exports", str(id), "erased"), ErasedMemberPage, settings, {})


def name_part(export: ExportFields, part: ExportPart) -> str:
    """Return a file name for a part: its number, and the suffix of its format."""
    return f"part-{part.number:05}{_SUFFIXES.get(export.format, '')}"


@contextmanager
def open_part(folder: NewFolder, name: str) -> Iterator[Callable[[bytes | Restart], None]]:
    """Yield what writes to a file that only its owner may read, or begins it again; at the end it
    is on the disk."""
    with (
        name_target(folder.target / name),
        open(folder.path / name, "xb", opener=_open_private) as file,
    ):

        def write(piece: bytes | Restart) -> None:
            if isinstance(piece, bytes):
                file.write(piece)
            else:
                file.seek(0)
                file.truncate()

        yield write
        file.flush()
        os.fsync(file.fileno())


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)
