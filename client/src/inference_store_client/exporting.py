"""Exports that the store carries out: requested, waited for, their parts downloaded. No I/O."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from uuid import UUID

from inference_store_client.commands import (
    Call,
    Close,
    Deliver,
    Deliveries,
    Failure,
    Read,
    Response,
    Steps,
    Wait,
)
from inference_store_client.decoding import decode
from inference_store_client.errors import ExportFailed, Refused, SettingsError
from inference_store_client.exchange import open_content
from inference_store_client.json_text import format_duration, write_count
from inference_store_client.private_files import name_target
from inference_store_client.question import NEWEST_FIRST, Question
from inference_store_client.reading import read_list, request_any
from inference_store_client.requests import ANY, Request, make_path, make_request
from inference_store_client.settings import ClientSettings
from inference_store_client.streaming import RESTART, Restart, collect, for_each
from inference_store_client.values.exports import (
    ENDED,
    ErasedMember,
    ErasedMemberPage,
    ExportBlobs,
    ExportFields,
    ExportFormat,
    ExportPart,
    ExportPartPage,
)

# The bytes of a part of an export, in pieces, over as many connections as it takes. No I/O.
#
# Bytes that are not those of its SHA-256 are fetched once more: the download may have spoilt them.

_PARTIAL: Final = 206
_DELETED: Final = (404, 410)


@dataclass(slots=True)
class _Received:
    """What has come of a part, and its SHA-256."""

    bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


def read_part(export: UUID, part: ExportPart, settings: ClientSettings) -> Steps[bytes]:
    """Return the bytes of a part. Raises as `stream_part`."""
    return b"".join((yield from collect(stream_part(export, part, settings))))


def stream_part(
    export: UUID, part: ExportPart, settings: ClientSettings
) -> Deliveries[bytes | Restart]:
    """Deliver the bytes of a part, or RESTART; what was cut off is continued.

    Raises ExportFailed if it is not written; or, at the end, if the bytes are others than the store
    wrote, also when they come again.
    """
    first = yield from _stream_once(part, settings)
    if first == part.sha256:
        return
    yield Deliver([RESTART])
    second = yield from _stream_once(part, settings)
    if second == part.sha256:
        return
    raise ExportFailed(_describe_damage(export, part, first, second))


def _stream_once(part: ExportPart, settings: ClientSettings) -> Steps[str]:
    """Deliver the bytes of a part; return their SHA-256."""
    received, attempt = _Received(), 0
    while True:
        before = received.bytes
        failure = yield from _read_once(part, settings, received)
        # a connection may break after the last byte, from where there is nothing to ask for
        if failure is None or received.bytes == part.bytes:
            break
        attempt = 1 if received.bytes > before else attempt + 1
        wait = settings.retries.find_wait(failure, attempt)
        if wait is None:
            raise failure.error
        yield Wait(wait)
    digest: str = received.digest.hexdigest()
    return digest


def _describe_damage(export: UUID, part: ExportPart, first: str, second: str) -> str:
    """Return what it means that the bytes are others, and the remedy."""
    name = f"part {part.number} of export {export}"
    if first == second:
        return (
            f"{name} is damaged: the bytes in the bucket are not those that the store wrote. Their"
            f" SHA-256 is {first}, and the manifest has {part.sha256}. Tell the operator of the"
            " store, and request the export again"
        )
    return (
        f"{name} arrives damaged: something on the way changes its bytes. The manifest has the"
        f" SHA-256 {part.sha256}, and {first} and then {second} came. Download it over another"
        " network or without a proxy"
    )


def _read_once(
    part: ExportPart, settings: ClientSettings, received: _Received
) -> Steps[Failure | None]:
    """Read what one connection brings; None: that was the end."""
    if part.url is None:
        remedy = "; start the export again" if part.state == "stale" else ""
        raise ExportFailed(f"part {part.number} is not there: it is {part.state}{remedy}")
    request = Request("GET", part.url, accept=ANY, may_leave=True, begin=received.bytes)
    opened = yield from open_content(request, settings)
    if isinstance(opened, Failure):
        return _name_deleted(part, opened)
    failure = yield from _read_pieces(received, skipped=_count_skipped(opened, received))
    yield Close()
    return failure


def _name_deleted(part: ExportPart, failure: Failure) -> Failure:
    """Return the failure; of a link that leads nowhere: what that means, and the remedy."""
    if not (isinstance(failure.error, Refused) and failure.error.status in _DELETED):
        return failure
    error = ExportFailed(
        f"the link of part {part.number} leads nowhere ({failure.error.status}): its object was"
        " deleted, perhaps by an erasure; start the export again"
    )
    error.__cause__ = failure.error
    return Failure(error, is_transient=False)


def _count_skipped(response: Response, received: _Received) -> int:
    """Return how many bytes of a response have come before: all, if it has no range."""
    return 0 if response.status == _PARTIAL else received.bytes


def _read_pieces(received: _Received, *, skipped: int) -> Steps[Failure | None]:
    """Deliver what comes after the first `skipped` bytes."""
    while True:
        piece = yield Read()
        if isinstance(piece, Failure):
            return piece
        if not piece:
            return None
        assert isinstance(piece, bytes)
        rest = piece[skipped:]
        skipped = max(0, skipped - len(piece))
        received.bytes += len(rest)
        received.digest.update(rest)
        yield Deliver([rest])


# A folder that is there as a whole, or not at all.


class NewFolder:
    """Fills a temporary folder beside the target, and renames it at the end. Only you may read it.

    A block that is left without `publish` removes it. A process that is killed leaves the
    temporary folder, which is named like a hidden file.
    """

    def __init__(self, target: Path) -> None:
        _refuse_existing(target)
        self.target = target
        target.parent.mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name[:100]}-"))

    def publish(self) -> None:
        """Give the folder its name. Raises SettingsError if that exists by now."""
        _refuse_existing(self.target)
        # Of a folder that somebody has made since, rename replaces an empty one alone.
        self.path.rename(self.target)

    def remove(self) -> None:
        """Remove the temporary folder, if it was not published."""
        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


def _refuse_existing(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise SettingsError(f"{target} exists: remove it, or name another folder")


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
    return collect(read_list(make_path("exports", str(id), "parts"), ExportPartPage, settings))


def list_erased(id: UUID, settings: ClientSettings) -> Deliveries[ErasedMember]:
    """Deliver what erasures took of an export, page by page."""
    return read_list(make_path("exports", str(id), "erased"), ErasedMemberPage, settings)


def download(
    id: UUID, folder: Path, settings: ClientSettings
) -> Steps[tuple[list[ExportPart], list[Path]]]:
    """Write every part into a new folder, once all are written; return the parts and the files."""
    names = []
    with NewFolder(folder) as new:
        export, parts = yield from wait_for_parts(id, partial(decode, ExportFields), settings)
        for part in parts:
            if part.state != "removed":
                names.append(f"part-{part.number:05}{_SUFFIXES.get(export.format, '')}")
                yield from _write_part(new, names[-1], stream_part(id, part, settings))
        new.publish()
    return parts, [folder / name for name in names]


def _write_part(folder: NewFolder, name: str, pieces: Deliveries[bytes | Restart]) -> Steps[None]:
    """Write a file that only its owner may read; at the end it is on the disk."""
    target = folder.target / name
    with name_target(target), open(folder.path / name, "xb", opener=_open_private) as file:

        def write(piece: bytes | Restart) -> None:
            with name_target(target):
                if isinstance(piece, bytes):
                    file.write(piece)
                else:
                    file.seek(0)
                    file.truncate()

        def act(piece: bytes | Restart) -> Steps[None]:
            yield Call(partial(write, piece))

        yield from for_each(pieces, act)
        file.flush()
        os.fsync(file.fileno())


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)
