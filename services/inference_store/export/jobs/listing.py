"""Lists the members of an export, list by list. The order makes every crash harmless:

1. search   the next uids that match
2. bucket   write the list there, so that a restored Postgres can find it again
3. commit   the list in Postgres, with the position at which the search goes on

After a crash before 3 the same list is written again. Before 2 and in 3 the service confirms that
it leads: one that was frozen meanwhile deletes its list, which may name what the next leader has
erased.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, any_, literal, select
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.export.part_formats import PART_FORMATS
from inference_store.index import key_registry
from inference_store.index.tables import inference
from inference_store.inference.errors import AccessDenied, BlobMissing, ObjectStoreUnavailable
from inference_store.inference.events import StorageKey, parse_stored
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.query.deadline import Deadline
from inference_store.query.read import STORAGE_KEYS
from inference_store.query.search import find_by_time

from . import members, state_changes
from .blob_copies import CopyLimits
from .job import Confirm, ExportJob, describe_job, find_job, read_model_id
from .object_keys import make_head_key, make_members_key
from .question import build_remaining_question
from .saved_keys import save_keys

MOST_LISTS: Final = 50
"""Lists that are added in one step."""
_CHUNK: Final = 500
Measure: TypeAlias = Callable[[Sequence[UUID]], Awaitable[Sequence[int]]]
"""Returns the bytes of each of some members."""


class ListLimits(NamedTuple):
    """Most members of a list, and most bytes of their blobs, unless a single member has more."""

    members: int
    bytes: int


async def cut_lists(
    begun: Sequence[UUID], uids: Sequence[UUID], limits: ListLimits, measure: Measure
) -> list[list[UUID]]:
    """Return the lists of the next members, of as many as one step adds; the first list begins with
    what was listed before (`begun`)."""
    lists: list[list[UUID]] = [[*begun]]
    size = sum(await measure(begun)) if begun else 0
    for at in range(0, len(uids), _CHUNK):
        chunk = uids[at : at + _CHUNK]
        for uid, added in zip(chunk, await measure(chunk), strict=True):
            is_full = len(lists[-1]) >= limits.members or size + added > limits.bytes
            if lists[-1] and is_full:
                if len(lists) == MOST_LISTS:
                    return lists
                lists.append([])
                size = 0
            lists[-1].append(uid)
            size += added
    return lists


_SECONDS: Final = 30.0
"""The longest search for one list; then it goes on with what was found."""
_BYTES: Final = "application/octet-stream"


class NewList(NamedTuple):
    """A list as it is written: its number and members, how many of them are new, and the position
    at which the search goes on."""

    number: int
    uids: Sequence[UUID]
    added: int
    listed_to: UUID


async def begin_listing(engine: AsyncEngine, blobs: Blobs, job: ExportJob) -> None:
    """Write the head to the bucket, and let the listing begin. Raises ObjectStoreUnavailable,
    Invalid."""
    async with engine.connect() as connection:
        model_id = await read_model_id(connection, job)
        keys = await key_registry.keys(connection, job.model)
    key = StorageKey(blobs.buckets.default, make_head_key(job.id))
    head = json.dumps(describe_job(job, model_id), indent=2).encode()
    await asyncio.to_thread(blobs.replace, key, head, content_type="application/json")
    async with engine.begin() as connection:
        await state_changes.start_listing(connection, job, keys=save_keys(keys))


async def list_some(
    engine: AsyncEngine,
    blobs: Blobs,
    job: ExportJob,
    *,
    most: int,
    copies: CopyLimits,
    confirm: Confirm,
) -> None:
    """Add the next members to the lists of at most so many; with the last ones, let the writing
    begin. `copies`: what closes a list earlier. `confirm` raises if the service leads no more.

    Raises OutOfTime, Invalid, ObjectStoreUnavailable.
    """
    async with engine.connect() as connection:
        query = await build_remaining_question(connection, job)
        begun = await members.read_members(connection, job.id, job.lists) if job.lists else []
        begun = begun if len(begun) < most else []
        space = most - len(begun)
        page = await find_by_time(
            connection,
            [query],
            limit=space,
            deadline=Deadline.after(_SECONDS),
            goes_on=job.listed_to is not None,
        )
    measure = _make_measure(engine, blobs, job, copies)
    lists = await cut_lists(begun, page.uids, ListLimits(most, copies.part), measure)
    listed = sum(map(len, lists)) - len(begun)
    is_partial = page.out_of_time or len(page.uids) == space or listed < len(page.uids)
    if page.uids:
        is_searched_farther = page.out_of_time and listed == len(page.uids) < space
        position = page.searched if is_searched_farther else None
        await _add_all(engine, blobs, job, begun, lists, position, confirm)
    elif is_partial and page.searched is not None:
        async with engine.begin() as connection:
            await state_changes.count_listed(
                connection, job.id, members=0, lists=0, listed_to=page.searched
            )
    if not is_partial:
        async with engine.begin() as connection:
            await state_changes.start_writing(connection, job.id)


def _make_measure(engine: AsyncEngine, blobs: Blobs, job: ExportJob, copies: CopyLimits) -> Measure:
    """Return what measures members: 0 bytes, if no blob is copied."""
    copied = PART_FORMATS[job.format].choose_blobs(job.blobs).copied

    async def measure(uids: Sequence[UUID]) -> Sequence[int]:
        if not copied:
            return [0] * len(uids)
        return await measure_blobs(engine, blobs, job.model, uids, copied=copied, most=copies.blob)

    return measure


async def _add_all(  # noqa: PLR0917
    engine: AsyncEngine,
    blobs: Blobs,
    job: ExportJob,
    begun: Sequence[UUID],
    lists: Sequence[Sequence[UUID]],
    position: UUID | None,
    confirm: Confirm,
) -> None:
    """Write the last list with more members, and new ones; `position`: how far the search is, if
    that is farther than the last member."""
    for listed in lists:
        number = job.lists if begun else job.lists + 1
        end = listed[-1] if position is None or listed is not lists[-1] else position
        new = NewList(number, listed, len(listed) - len(begun), end)
        if new.added and not await _add(engine, blobs, job, new, confirm):
            return
        job, begun = replace(job, lists=number), ()


async def _add(
    engine: AsyncEngine, blobs: Blobs, job: ExportJob, new: NewList, confirm: Confirm
) -> bool:
    """Write a list. False: the export was cancelled, and its objects are deleted later."""
    key = StorageKey(blobs.buckets.default, make_members_key(job.id, new.number))
    await confirm()
    failpoint("export.list.before")
    await asyncio.to_thread(blobs.replace, key, members.pack_uids(new.uids), content_type=_BYTES)
    failpoint("export.list.after")
    async with engine.begin() as connection:
        current = await find_job(connection, job.id, lock=True)
        if current is None or current.state != "listing":
            return False
        await _confirm_or_delete(blobs, key, confirm)
        await members.put_members(connection, job.id, new.number, job.model, new.uids)
        await state_changes.count_listed(
            connection,
            job.id,
            members=new.added,
            lists=new.number - job.lists,
            listed_to=new.listed_to,
        )
    failpoint("export.list.commit.after")
    return True


async def _confirm_or_delete(blobs: Blobs, key: StorageKey, confirm: Confirm) -> None:
    """Delete a list if the service leads no more. It is missing in the bucket then only for a
    restore, which deletes parts without a list."""
    try:
        await confirm()
    except Exception:
        with suppress(ObjectStoreUnavailable):
            await asyncio.to_thread(blobs.delete_objects, [key])
        raise


_HERE: Final = inference.c
_UIDS: Final = ARRAY(UUID_TYPE(as_uuid=True))
_THREADS: Final = 8


async def measure_blobs(
    engine: AsyncEngine,
    blobs: Blobs,
    model: int,
    uids: Sequence[UUID],
    *,
    copied: Sequence[str],
    most: int,
) -> list[int]:
    """Return the bytes to copy of each inference; blobs over `most` are not copied.

    The index has the size of most inputs; S3 is asked for the others. Raises
    ObjectStoreUnavailable.
    """
    columns = (_HERE.data_size, *(_HERE[STORAGE_KEYS[blob]] for blob in copied))
    query = select(_HERE.uid, *columns).where(
        _HERE.model == model, _HERE.uid == any_(literal(uids, _UIDS))
    )
    async with engine.connect() as connection:  # none is open while S3 is asked
        rows = {row.uid: row for row in await connection.execute(query)}
    wanted = [(rows.get(uid), blob) for uid in uids for blob in copied]

    def measure() -> list[int]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs-head") as executor:
            return [*executor.map(partial(_measure_one, blobs, most), *zip(*wanted, strict=True))]

    sizes = await asyncio.to_thread(measure)
    width = len(copied)
    return [sum(sizes[at : at + width]) for at in range(0, len(sizes), width)]


def _measure_one(blobs: Blobs, most: int, row: Any, blob: str) -> int:
    """Return the size of a blob; 0 if it will be missing."""
    text = None if row is None else row._mapping[STORAGE_KEYS[blob]]
    if text is None:
        return 0
    size = row.data_size if blob == "data" else None
    if size is None:
        size = _request_size(blobs, text, most)
    return int(size) if size <= most else 0


def _request_size(blobs: Blobs, text: str, most: int) -> int:
    key = parse_stored(text)
    if key.bucket not in blobs.buckets.allowed:
        return 0
    try:
        return blobs.head(key)
    except BlobMissing:
        return 0
    except AccessDenied:  # a HEAD does not tell whether S3 refuses this object alone
        [content] = blobs.get_many([key], limit=most)
        return len(content) if isinstance(content, bytes) else 0
