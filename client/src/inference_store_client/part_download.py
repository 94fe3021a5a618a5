"""The bytes of a part of an export, in pieces, over as many connections as it takes. No I/O.

Bytes that are not those of its SHA-256 are fetched once more: the download may have spoilt them.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from .chunks import RESTART, accept_delivered
from .commands import Close, Deliver, Failure, Read, Response, Steps, Wait
from .errors import ExportFailed, Refused
from .exchange import open_content
from .requests import ANY, Request
from .settings import ClientSettings
from .values.exports import ExportPart

_PARTIAL: Final = 206
_DELETED: Final = (404, 410)


@dataclass(slots=True)
class _Received:
    """What has come of a part, and its SHA-256."""

    bytes: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


def read_part(export: UUID, part: ExportPart, settings: ClientSettings) -> Steps[bytes]:
    """Return the bytes of a part. Raises as `stream_part`."""
    pieces: list[bytes] = []

    def accept(item: Any) -> None:
        if item is RESTART:
            pieces.clear()
        else:
            pieces.append(item)

    yield from accept_delivered(stream_part(export, part, settings), accept)
    return b"".join(pieces)


def stream_part(export: UUID, part: ExportPart, settings: ClientSettings) -> Steps[None]:
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
