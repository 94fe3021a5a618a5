"""Exports that the store carries out: requested, waited for, their parts downloaded."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from inference_store_client.decoding import decode
from inference_store_client.errors import ExportFailed, Refused, SettingsError
from inference_store_client.json_text import Json, write_count
from inference_store_client.private_files import NewFile, NewFolder
from inference_store_client.question import NEWEST_FIRST, Question
from inference_store_client.reading import read_list, request_any
from inference_store_client.requests import ANY, Request, make_path, make_request
from inference_store_client.streaming import RESTART, Position, Restart, collect, resume
from inference_store_client.tables import Rows
from inference_store_client.times import format_duration
from inference_store_client.transport import Asking, Response, Transport, asks
from inference_store_client.values.answers import Listing
from inference_store_client.values.exports import (
    ENDED,
    ErasedMember,
    ExportBlobs,
    ExportFields,
    ExportPart,
)

# The bytes of a part of an export, in pieces, over as many connections as it takes.
#
# Bytes that are not those of its SHA-256 are fetched once more: the download may have spoilt them.

_PARTIAL: Final = 206
_DELETED: Final = (404, 410)


async def stream_part(
    transport: Transport, export: UUID, part: ExportPart
) -> AsyncGenerator[bytes | Restart, None]:
    """Yield the bytes of a part, or RESTART; what was cut off is continued.

    Raises ExportFailed if it is not written; or, at the end, if the bytes are others than the store
    wrote, also when they come again.
    """
    digests: list[str] = []
    for is_again in (False, True):
        if is_again:
            yield RESTART
        digest = hashlib.sha256()
        async for piece in _stream_once(transport, part):
            digest.update(piece)
            yield piece
        digests.append(digest.hexdigest())
        if digests[-1] == part.sha256:
            return
    raise ExportFailed(_describe_damage(export, part, *digests))


async def _stream_once(transport: Transport, part: ExportPart) -> AsyncGenerator[bytes, None]:
    if part.url is None:
        remedy = "; start the export again" if part.state == "stale" else ""
        raise ExportFailed(f"part {part.number} is not there: it is {part.state}{remedy}")
    position = Position(part.bytes, "byte")
    link = Request("GET", part.url, accept=ANY, may_leave=True)

    def make_request(_: str | None) -> Request:
        return replace(link, begin=position.received)

    try:
        async for piece in resume(transport, make_request, _read_pieces, position):
            yield piece
    except Refused as refusal:
        if refusal.status not in _DELETED:
            raise
        raise ExportFailed(
            f"the link of part {part.number} leads nowhere ({refusal.status}): its object was"
            " deleted, perhaps by an erasure; start the export again"
        ) from refusal


async def _read_pieces(response: Response, position: Position) -> AsyncIterator[bytes]:
    # without a range, all that has come before comes again
    skipped = 0 if response.status == _PARTIAL else position.received
    async for piece in response.pieces:
        rest = piece[skipped:]
        skipped = max(0, skipped - len(piece))
        if rest:
            position.received += len(rest)
            position.move()
            yield rest


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


ExportT = TypeVar("ExportT", bound=ExportFields)
Build = Callable[[Any], ExportT]
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


async def read_export(transport: Transport, request: Request, build: Build[ExportT]) -> ExportT:
    """Send a request whose answer is an export."""
    return build(await request_any(transport, request))


async def wait_until_written(transport: Transport, id: UUID, build: Build[ExportT]) -> ExportT:
    """Wait until every part is written. Raises ExportFailed if that will never be."""
    seconds = _FIRST_WAIT_SECONDS
    request = make_request("GET", make_path("exports", str(id)))
    while (export := await read_export(transport, request, build)).state not in ENDED:
        await transport.sleep(seconds)
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


async def list_parts(transport: Transport, id: UUID) -> Rows[ExportPart]:
    """Return every part. The store notes that the caller was given links."""
    path = make_path("exports", str(id), "parts")
    return await collect(read_list(transport, path, Listing[ExportPart]))


async def download(
    transport: Transport, id: UUID, folder: Path
) -> tuple[list[ExportPart], list[Path]]:
    """Write every part into a new folder, once all are written; return the parts and the files."""
    build = partial(decode, ExportFields)
    names = []
    with closing(NewFolder(folder)) as new:
        export = await wait_until_written(transport, id, build)
        parts = await list_parts(transport, id)
        if len(parts) < export.parts or any(part.state != "written" for part in parts):
            # A part is empty; or an erasure or the end of the export came after it was seen done.
            await wait_until_written(transport, id, build)
        for part in parts:
            if part.state != "removed":
                names.append(f"part-{part.number:05}{_SUFFIXES.get(export.format, '')}")
                await _write_part(transport, new, names[-1], stream_part(transport, id, part))
        new.publish()
    return parts, [folder / name for name in names]


async def _write_part(
    transport: Transport, folder: NewFolder, name: str, pieces: AsyncIterable[bytes | Restart]
) -> None:
    with closing(NewFile(folder.path / name, called=folder.target / name)) as file:
        async for piece in pieces:
            if isinstance(piece, Restart):
                await transport.call(file.begin_again)
            else:
                await transport.call(partial(file.write, piece))
        file.publish()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportMethods(ExportFields, Asking, Generic[ExportT]):
    """An export, and what can be done with it."""

    _transport: Transport = field(repr=False, compare=False)

    @asks
    async def refresh(self) -> ExportT:
        """Return the export as it is now."""
        return await self._ask("GET")

    @asks
    async def wait(self) -> ExportT:
        """Return the export once every part is written. Raises ExportFailed if none will be."""
        return await wait_until_written(self._transport, self.id, self._make)

    @asks
    async def list_parts(self) -> Rows[ExportPart]:
        """Return its parts, with links. The store notes that you were given them."""
        return await list_parts(self._transport, self.id)

    @asks
    async def read_part(self, part: ExportPart) -> bytes:
        """Return the bytes of a part, checked by their SHA-256."""
        return b"".join(await collect(stream_part(self._transport, self.id, part)))

    @asks
    async def download(self, folder: str | Path) -> list[Path]:
        """Write every part into a folder, once all are written; return the files.

        The folder must be new. It appears when it is whole, and only you may read it. A download
        that is cut off is continued; no part is in memory as a whole.
        """
        _, files = await download(self._transport, self.id, Path(folder))
        return files

    @asks
    async def list_erased(self) -> Rows[ErasedMember]:
        """Return what erasures took of it, the earliest first: erase it in your copies too."""
        path = make_path("exports", str(self.id), "erased")
        return await collect(read_list(self._transport, path, Listing[ErasedMember]))

    @asks
    async def cancel(self) -> ExportT:
        """Stop it, and let the store delete its parts."""
        return await self._ask("POST", "cancel")

    @asks
    async def restart(self) -> ExportT:
        """Ask its question again: return another export, with parts of its own."""
        return await self._ask("POST", "restart")

    async def _ask(self, method: str, *more: str) -> ExportT:
        request = make_request(method, make_path("exports", str(self.id), *more))
        return await read_export(self._transport, request, self._make)

    def _make(self, members: Json) -> Any:
        return self._maker(type(self))(members)
