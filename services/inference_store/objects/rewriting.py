"""Overwrites entries of a segment in place: same key, same length, so that no other range moves.

The order makes every crash harmless: read · the caller notes the hash of what is about to be
written (`Overwritten.next_hash`) · put · delete the older versions · read the ranges back. An entry
that is overwritten already counts as done, so all of it can be repeated.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from typing import TYPE_CHECKING, Final
from uuid import UUID

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import S3Store

from inference_store.inference.errors import AccessDenied, BlobMissing, BlobUnreadable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import ordinal_of
from inference_store.inference.tar import (
    BLOCK,
    CONTENT_TYPE,
    ERASED,
    Entry,
    iterate_entries,
    make_header,
    read_header,
)
from inference_store.platform.failpoints import failpoint

from .deletion import DeleteFault, Deletion
from .transfers import translate_error

if TYPE_CHECKING:  # a type that obstore has for type checkers alone
    from obstore import PutMode

# Where a header has the time of its entry.
_TIME: Final = slice(136, 147)
_NO_CONDITIONS: Final = ("NotImplemented", "501 Not Implemented")
# obstore refuses a server that sends all of an object instead of a range (rclone)
_NO_RANGES: Final = "non-partial response"
# No proxy writes a larger segment.
_MOST_BYTES: Final = 1 << 30
CHANGED: Final = "SegmentChanged"
READ_AGAIN: Final = "SegmentWritten"
"""Code of a fault after which the segment is to be read again: somebody else has written it."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What of a segment is to be overwritten.

    `names`: entries, and where their data lie, if that is known; `ordinals`: captures; `offsets`:
    of entries by where their data lie, in groups: one whose entries are not of one capture is left.
    `kept`: where data lie that others point to. `hashes`, `sizes`: what the segment may be, and how
    many bytes; none: it is not known.
    """

    place: StorageKey
    names: Mapping[str, int | None] = field(default_factory=dict)
    ordinals: frozenset[int] = frozenset()
    offsets: tuple[frozenset[int], ...] = ()
    kept: frozenset[int] = frozenset()
    hashes: frozenset[str] = frozenset()
    sizes: frozenset[int] = frozenset()


@dataclass(slots=True)
class Overwritten:
    """A segment that was read, and what is to be written in its place.

    `entries`: those to read back; `erased`: where the data of each entry lie that is erased then,
    and how long they are. `is_gone`: nothing is there; `is_empty`: no entry would be left.
    `found`: the captures of groups.
    """

    rewrite: Rewrite
    tar: bytearray = field(default_factory=bytearray, repr=False)
    hash: str = ""
    next_hash: str = ""
    entries: list[Entry] = field(default_factory=list)
    bytes: int = 0
    erased: frozenset[tuple[int, int]] = frozenset()
    is_gone: bool = False
    is_empty: bool = False
    found: set[UUID] = field(default_factory=set)
    fault: DeleteFault | None = None
    tag: str | None = None


def read_segment(store: S3Store, rewrite: Rewrite, deletion: Deletion) -> Overwritten:
    """Read a segment, and overwrite its entries in memory. A segment that is not the one that is
    known gets a fault. Raises ObjectStoreUnavailable."""
    overwritten, place = Overwritten(rewrite), rewrite.place
    try:
        answer = obstore.get(store, place.key)
        overwritten.tag, size = answer.meta["e_tag"], answer.meta["size"]
        if size > _MOST_BYTES or (rewrite.sizes and size not in rewrite.sizes):
            overwritten.fault = _refuse(place, f"it has {size} bytes, which it never had")
            return overwritten
        tar = overwritten.tar = bytearray(answer.bytes())
    except (FileNotFoundError, ValueError, BaseError) as exc:
        error = translate_error(place, exc)
        if isinstance(error, BlobMissing):
            overwritten.is_gone = True
            overwritten.fault = _find_hidden(place, deletion)
        elif isinstance(error, BlobUnreadable | AccessDenied):
            overwritten.fault = DeleteFault(place, type(error).__name__, str(error))
        else:
            raise error from exc
        return overwritten
    overwritten.hash = overwritten.next_hash = sha256(tar).hexdigest()
    try:
        entries = [entry for entry, _ in iterate_entries(BytesIO(tar))]
    except ValueError as error:
        overwritten.fault = _refuse(place, f"it is no segment: {error}")
        return overwritten
    doomed = _choose(entries, overwritten)
    if doomed and rewrite.hashes and overwritten.hash not in rewrite.hashes:
        overwritten.fault = _refuse(place, "its bytes are not those that it was written with")
        return overwritten
    for entry in doomed:
        _overwrite(tar, entry)
        overwritten.bytes += entry.size
    if doomed:
        overwritten.next_hash = sha256(tar).hexdigest()
    erased = [entry for entry in entries if entry.name == ERASED]
    # a rewrite may have ended before they were read back
    overwritten.entries = doomed or erased
    overwritten.erased = frozenset((entry.offset, entry.size) for entry in (*doomed, *erased))
    overwritten.is_empty = len({*doomed, *erased}) == len(entries)
    return overwritten


def _find_hidden(place: StorageKey, deletion: Deletion) -> DeleteFault | None:
    """Return a fault if older versions of a missing segment exist: they hold other captures too."""
    if not deletion.still_there([place]):
        return None
    reason = "a delete marker hides it, over versions that hold other captures too"
    remedy = "remove the marker, or all versions"
    return DeleteFault(place, "SegmentHidden", f"{reason}: {remedy}; it is then tried again")


def _refuse(place: StorageKey, reason: str) -> DeleteFault:
    remedy = "put back what the store wrote last, or delete the object if none of it is needed"
    return DeleteFault(place, CHANGED, f"{reason}, so nothing of it was changed: {remedy}")


def _choose(entries: Sequence[Entry], overwritten: Overwritten) -> list[Entry]:
    """Return the entries to overwrite, also those that say they are and have bytes; note the
    captures of groups."""
    rewrite = overwritten.rewrite
    by_offset = {entry.offset: entry for entry in entries if entry.name != ERASED}
    chosen: set[int] = set()
    for group in rewrite.offsets:
        there = [by_offset[offset] for offset in group if offset in by_offset]
        captures = {_capture_of(entry) for entry in there}
        if len(captures) == 1 and None not in captures:
            overwritten.found |= {capture for capture in captures if capture is not None}
            chosen |= group

    def is_doomed(entry: Entry) -> bool:
        if entry.offset in rewrite.kept or entry.name == ERASED:
            return False
        if rewrite.names.get(entry.name, -1) in {None, entry.offset} or entry.offset in chosen:
            return True
        capture = _capture_of(entry) if rewrite.ordinals else None
        return capture is not None and ordinal_of(capture) in rewrite.ordinals

    tar = memoryview(overwritten.tar)
    return [
        entry
        for entry in entries
        if is_doomed(entry)
        or (entry.name == ERASED and not _is_zero(tar[entry.offset : entry.offset + entry.size]))
    ]


def _capture_of(entry: Entry) -> UUID | None:
    try:
        return UUID(entry.name.partition(".")[0])
    except ValueError:
        return None


def _overwrite(tar: bytearray, entry: Entry) -> None:
    start, end = entry.offset - BLOCK, entry.offset + entry.size
    header = bytes(tar[start : entry.offset])
    at = int(header[_TIME].rstrip(b" \0") or b"0", 8)
    tar[start : entry.offset] = make_header(ERASED, entry.size, at)
    tar[entry.offset : end] = bytes(entry.size)


def put_segment(store: S3Store, overwritten: Overwritten) -> None:
    """Write a segment in place if something of it changed and something is left of it. What fails
    is its fault. Raises ObjectStoreUnavailable."""
    if overwritten.next_hash != overwritten.hash and not overwritten.is_empty:
        _put(store, overwritten)


def finish_segment(store: S3Store, overwritten: Overwritten, deletion: Deletion) -> None:
    """Delete the older versions of a segment, and read back what was overwritten; or delete it, if
    nothing is left of it. What fails is its fault. Raises ObjectStoreUnavailable."""
    place = overwritten.rewrite.place
    if overwritten.is_empty:
        faults: list[DeleteFault] = deletion.delete([place])
        if not faults and deletion.still_there([place]):
            faults = [DeleteFault(place, "StillThere", "deleted, and listed still")]
    else:
        faults = deletion.delete_older(place)
        failpoint("retention.rewrite.older")
    fault = next(iter(faults), None)
    if fault is None and not overwritten.is_empty:
        fault = _find_remaining(store, overwritten)
    overwritten.fault = fault


def _put(store: S3Store, overwritten: Overwritten) -> None:
    """Write it if it is still what was read, where the store can tell."""
    place = overwritten.rewrite.place
    condition: PutMode = "overwrite"
    if overwritten.tag is not None:
        condition = {"e_tag": overwritten.tag}
    modes: tuple[PutMode, ...] = (condition, "overwrite")
    for mode in modes:
        try:
            obstore.put(
                *(store, place.key, overwritten.tar),
                attributes={"Content-Type": CONTENT_TYPE},
                mode=mode,
                use_multipart=False,
            )
        except PreconditionError:
            reason = "somebody else has written it meanwhile; it is tried again"
            overwritten.fault = DeleteFault(place, READ_AGAIN, reason)
        except (FileNotFoundError, BaseError) as exc:
            # a store without conditional writes: the lease alone keeps others away
            if mode != "overwrite" and any(word in str(exc) for word in _NO_CONDITIONS):
                continue
            error = translate_error(place, exc)
            if isinstance(error, AccessDenied | BlobUnreadable):
                overwritten.fault = DeleteFault(place, type(error).__name__, str(error))
            else:
                raise error from exc
        return


def _find_remaining(store: S3Store, overwritten: Overwritten) -> DeleteFault | None:
    """Read back what was overwritten: zeros behind a header that says so."""
    place = overwritten.rewrite.place
    for some in _split(overwritten.entries):
        try:
            reads = _read_back(store, place, some)
        except (FileNotFoundError, ValueError, BaseError) as exc:
            error = translate_error(place, exc)
            if isinstance(error, BlobMissing):
                return DeleteFault(place, READ_AGAIN, "somebody has deleted it meanwhile")
            raise error from exc
        for entry, read in zip(some, reads, strict=True):
            if not _is_erased(read, entry):
                return DeleteFault(place, "StillThere", "overwritten, and reads as before")
    return None


def _read_back(store: S3Store, place: StorageKey, entries: Sequence[Entry]) -> list[bytes]:
    starts = [entry.offset - BLOCK for entry in entries]
    lengths = [BLOCK + entry.size for entry in entries]
    try:
        reads = obstore.get_ranges(store, place.key, starts=starts, lengths=lengths)
    except BaseError as exc:
        if _NO_RANGES not in str(exc):
            raise
        tar = memoryview(bytes(obstore.get(store, place.key).bytes()))
        return [bytes(tar[at : at + length]) for at, length in zip(starts, lengths, strict=True)]
    return [bytes(read) for read in reads]


def _is_erased(read: bytes, entry: Entry) -> bool:
    try:
        header = read_header(read[:BLOCK], entry.offset)
    except ValueError:
        return False
    return header.name == ERASED and _is_zero(memoryview(read)[BLOCK:])


def _is_zero(data: memoryview) -> bool:
    return data == bytes(len(data))


_RANGES: Final = 64


def _split(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    ordered = sorted(entries, key=lambda entry: entry.offset)
    yield from (ordered[at : at + _RANGES] for at in range(0, len(ordered), _RANGES))
