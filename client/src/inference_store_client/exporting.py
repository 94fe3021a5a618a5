"""Exports that the store carries out: requested, waited for, their parts downloaded. No I/O."""

import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

from inference_store_client.commands import (
    Call,
    Close,
    Deliver,
    Deliveries,
    Failure,
    Read,
    Steps,
    Wait,
)
from inference_store_client.decoding import decode
from inference_store_client.errors import ExportFailed, Refused, SettingsError
from inference_store_client.exchange import get_settings, open_content
from inference_store_client.json_text import write_count
from inference_store_client.private_files import NewFile, NewFolder
from inference_store_client.question import NEWEST_FIRST, Question
from inference_store_client.reading import read_list, request_any
from inference_store_client.requests import ANY, Request, make_path, make_request
from inference_store_client.streaming import RESTART, Restart, collect, for_each
from inference_store_client.tables import Rows
from inference_store_client.times import format_duration
from inference_store_client.values.answers import Listing
from inference_store_client.values.exports import (
    ENDED,
    ErasedMember,
    ExportBlobs,
    ExportFields,
    ExportPart,
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


def read_part(export: UUID, part: ExportPart) -> Steps[bytes]:
    """Return the bytes of a part. Raises as `stream_part`."""
    return b"".join((yield from collect(stream_part(export, part))))


def stream_part(export: UUID, part: ExportPart) -> Deliveries[bytes | Restart]:
    """Deliver the bytes of a part, or RESTART; what was cut off is continued.

    Raises ExportFailed if it is not written; or, at the end, if the bytes are others than the store
    wrote, also when they come again.
    """
    first = yield from _stream_once(part)
    if first == part.sha256:
        return
    yield Deliver([RESTART])
    second = yield from _stream_once(part)
    if second == part.sha256:
        return
    raise ExportFailed(_describe_damage(export, part, first, second))


def _stream_once(part: ExportPart) -> Steps[str]:
    """Deliver the bytes of a part; return their SHA-256."""
    received, attempt, retries = _Received(), 0, (yield from get_settings()).retries
    while True:
        before = received.bytes
        failure = yield from _read_once(part, received)
        # a connection may break after the last byte, from where there is nothing to ask for
        if failure is None or received.bytes == part.bytes:
            break
        attempt = 1 if received.bytes > before else attempt + 1
        wait = retries.find_wait(failure, attempt)
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


def _read_once(part: ExportPart, received: _Received) -> Steps[Failure | None]:
    """Read what one connection brings; None: that was the end."""
    if part.url is None:
        remedy = "; start the export again" if part.state == "stale" else ""
        raise ExportFailed(f"part {part.number} is not there: it is {part.state}{remedy}")
    request = Request("GET", part.url, accept=ANY, may_leave=True, begin=received.bytes)
    opened = yield from open_content(request)
    if isinstance(opened, Failure):
        return _name_deleted(part, opened)
    # without a range, all that has come before comes again
    skipped = 0 if opened.status == _PARTIAL else received.bytes
    failure = yield from _read_pieces(received, skipped=skipped)
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
    format: str,
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
        "limit": question.limit is not None,
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


def read_export(request: Request, build: Build[T]) -> Steps[T]:
    """Send a request whose answer is an export."""
    return build((yield from request_any(request)))


def wait_until_written(id: UUID, build: Build[T]) -> Steps[T]:
    """Wait until every part is written. Raises ExportFailed if that will never be."""
    seconds = _FIRST_WAIT_SECONDS
    request = make_request("GET", make_path("exports", str(id)))
    while (export := (yield from read_export(request, build))).state not in ENDED:
        yield Wait(seconds)
        seconds = min(2 * seconds, _LONGEST_WAIT_SECONDS)
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


def wait_for_parts(id: UUID, build: Build[T]) -> Steps[tuple[T, list[ExportPart]]]:
    """Wait until an export is done; return it with its parts. Raises as `wait_until_written`."""
    export = yield from wait_until_written(id, build)
    parts = yield from list_parts(id)
    if len(parts) < export.parts or any(part.state != "written" for part in parts):
        # A part is empty; or an erasure or the end of the export came after it was seen done.
        export = yield from wait_until_written(id, build)
    return export, parts


def list_parts(id: UUID) -> Steps[Rows[ExportPart]]:
    """Return every part. The store notes that the caller was given links."""
    return collect(read_list(make_path("exports", str(id), "parts"), Listing[ExportPart]))


def list_erased(id: UUID) -> Deliveries[ErasedMember]:
    """Deliver what erasures took of an export, page by page."""
    return read_list(make_path("exports", str(id), "erased"), Listing[ErasedMember])


def download(id: UUID, folder: Path) -> Steps[tuple[list[ExportPart], list[Path]]]:
    """Write every part into a new folder, once all are written; return the parts and the files."""
    names = []
    with closing(NewFolder(folder)) as new:
        export, parts = yield from wait_for_parts(id, partial(decode, ExportFields))
        for part in parts:
            if part.state != "removed":
                names.append(f"part-{part.number:05}{_SUFFIXES.get(export.format, '')}")
                yield from _write_part(new, names[-1], stream_part(id, part))
        new.publish()
    return parts, [folder / name for name in names]


def _write_part(folder: NewFolder, name: str, pieces: Deliveries[bytes | Restart]) -> Steps[None]:
    with closing(NewFile(folder.path / name, called=folder.target / name)) as file:

        def act(piece: bytes | Restart) -> Steps[None]:
            if isinstance(piece, Restart):
                yield Call(file.begin_again)
            else:
                yield Call(partial(file.write, piece))

        yield from for_each(pieces, act)
        file.publish()
