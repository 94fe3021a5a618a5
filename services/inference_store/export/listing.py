"""The question of an export, and the lists of what matches it.

The order of listing makes every crash harmless:

1. search   the next uids that match
2. commit   their list, with the position at which the search goes on

After a crash before 2 the same list is made again. In 2 the service confirms that it leads: the
list of one that was frozen meanwhile may name what the next leader has erased.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

from sqlalchemy import ARRAY, any_, literal, select
from sqlalchemy.dialects.postgresql import UUID as UUID_TYPE
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.export import jobs
from inference_store.export.part_formats import CopyLimits
from inference_store.index import key_registry
from inference_store.index.tables import inference
from inference_store.inference.errors import AccessDenied, BlobMissing, Invalid
from inference_store.inference.events import parse_stored
from inference_store.inference.json_text import write_json
from inference_store.inference.layout import member_of
from inference_store.objects import Blobs
from inference_store.platform.failpoints import failpoint
from inference_store.query.cql2 import Node, resolved_in, to_json, to_text
from inference_store.query.deadline import Deadline, range_of_time
from inference_store.query.filters import certain
from inference_store.query.filters.check import check
from inference_store.query.filters.names import find_known_keys, names_in
from inference_store.query.plan import Query
from inference_store.query.preparation import build_query
from inference_store.query.read import STORAGE_KEYS
from inference_store.query.search import find_by_time

from .columns import BlobChoice, list_kinds
from .jobs import Confirm, ExportJob
from .part_formats import PART_FORMATS

MOST_LISTS: Final = 50
"""Lists that are added in one step."""
_CHUNK: Final = 500
_THREADS: Final = 8
_SECONDS: Final = 30.0
"""The longest search for one list; then it goes on with what was found."""
_HERE: Final = inference.c
_UIDS: Final = ARRAY(UUID_TYPE(as_uuid=True))
Included: TypeAlias = Literal["metadata", "predictions", "ground_truth"]
Measure: TypeAlias = Callable[[Sequence[UUID]], Awaitable[Sequence[int]]]
"""Returns the bytes of each of some members."""


async def describe_question(
    connection: AsyncConnection,
    model: int,
    tree: Node | None,
    *,
    text: str | None,
    since: datetime | None,
    until: datetime,
    include: Sequence[Included],
    blobs: BlobChoice = "none",
) -> dict[str, Any]:
    """Return the document of a job; `tree`: the filter, `text`: as it was written.

    Names are resolved now, and relative times replaced by their instants. Raises UnknownKey,
    ImpossibleComparison, InvalidFilter, NotKept.
    """
    document = {
        "filter": None,
        "saved": None,
        "since": None if since is None else since.isoformat(),
        "until": until.isoformat(),
        "include": list(include),
        "blobs": blobs,
    }
    if tree is None:
        return document
    keys = await find_known_keys(connection, [model], names_in(tree))
    check(tree, keys, source=text)  # a key that nobody has is a typo: it is refused
    if text is not None and resolved_in(tree):
        text = to_text(tree)
    return document | {
        "filter": text or write_json(to_json(tree)),
        "saved": certain.save(tree, keys, source=text).text,
    }


async def build_question(
    connection: AsyncConnection, model: int, document: Mapping[str, Any]
) -> Query:
    """Return the query of a job's document, the oldest first."""
    saved_filter = document["saved"]
    predicates = [] if saved_filter is None else [await certain.load(connection, saved_filter)]
    since = None if document["since"] is None else datetime.fromisoformat(document["since"])
    until = datetime.fromisoformat(document["until"])
    query = await build_query(connection, range_of_time(model, since, until), predicates)
    return query.in_order()


async def continue_question(connection: AsyncConnection, job: ExportJob) -> Query:
    """Return the query after what is listed. Raises Invalid if its filter was erased."""
    if job.erased_by is not None:
        raise Invalid(f"Erasure {job.erased_by} removed the filter of this job: request it again.")
    query = await build_question(connection, job.model, job.document)
    return query if job.listed_to is None else query.after(job.listed_to)


async def cut_lists(
    begun: Sequence[UUID], uids: Sequence[UUID], most: int, most_bytes: int, measure: Measure
) -> list[list[UUID]]:
    """Return the lists of the next members, of as many as one step adds; the first list begins with
    what was listed before (`begun`). A list has at most so many members, and bytes of their blobs,
    unless a single member has more."""
    lists: list[list[UUID]] = [[*begun]]
    size = sum(await measure(begun)) if begun else 0
    for at in range(0, len(uids), _CHUNK):
        chunk = uids[at : at + _CHUNK]
        for uid, added in zip(chunk, await measure(chunk), strict=True):
            is_full = len(lists[-1]) >= most or size + added > most_bytes
            if lists[-1] and is_full:
                if len(lists) == MOST_LISTS:
                    return lists
                lists.append([])
                size = 0
            lists[-1].append(uid)
            size += added
    return lists


async def begin_listing(engine: AsyncEngine, job: ExportJob) -> None:
    """Let the listing begin. Raises Invalid if the model was removed."""
    async with engine.begin() as connection:
        await jobs.read_model_id(connection, job)
        keys = await key_registry.keys(connection, job.model)
        document = {**job.document, "keys": list_kinds(keys)}
        await jobs.move_job(connection, job.id, "listing", document=document)


@dataclass(frozen=True, slots=True)
class Listing:
    """Lists the members of one job, at most `most` to a list; `copies` may close one earlier.
    `confirm` raises if the service leads no more."""

    engine: AsyncEngine
    blobs: Blobs
    job: ExportJob
    most: int
    copies: CopyLimits
    confirm: Confirm

    async def list_some(self) -> None:
        """Add the next members to the lists; with the last ones, let the writing begin.

        Raises OutOfTime, Invalid, ObjectStoreUnavailable.
        """
        job = self.job
        async with self.engine.connect() as connection:
            query = await continue_question(connection, job)
            begun = await jobs.read_members(connection, job.id, job.lists) if job.lists else []
            begun = begun if len(begun) < self.most else []
            space = self.most - len(begun)
            page = await find_by_time(
                connection,
                query,
                limit=space,
                deadline=Deadline.after(_SECONDS),
                goes_on=job.listed_to is not None,
            )
        most_bytes = self.copies.part
        lists = await cut_lists(begun, page.uids, self.most, most_bytes, self._measure)
        listed = sum(map(len, lists)) - len(begun)
        is_partial = page.out_of_time or len(page.uids) == space or listed < len(page.uids)
        if page.uids:
            is_searched_farther = page.out_of_time and listed == len(page.uids) < space
            end = page.searched if is_searched_farther else None
            for number, uids in enumerate(lists, job.lists if begun else job.lists + 1):
                old = len(begun) if number == job.lists else 0
                listed_to = end if end is not None and uids is lists[-1] else uids[-1]
                if len(uids) > old and not await self._add(number, uids, old, listed_to):
                    return
        elif is_partial and page.searched is not None:
            async with self.engine.begin() as connection:
                about = {"members": 0, "lists": 0}
                await jobs.count_listed(connection, job.id, **about, listed_to=page.searched)
        if not is_partial:
            async with self.engine.begin() as connection:
                await jobs.move_job(connection, job.id, "writing")

    async def _add(self, number: int, uids: Sequence[UUID], old: int, listed_to: UUID) -> bool:
        """Store a list whose first members may be `old`. False: the export was cancelled."""
        job = self.job
        failpoint("export.list.before")
        async with self.engine.begin() as connection:
            current = await jobs.find_job(connection, job.id, lock=True)
            if current is None or current.state != "listing":
                return False
            await self.confirm()
            await jobs.put_members(connection, job.id, number, job.model, uids)
            counts = {"members": len(uids) - old, "lists": int(number > job.lists)}
            await jobs.count_listed(connection, job.id, **counts, listed_to=listed_to)
        failpoint("export.list.commit.after")
        return True

    async def _measure(self, uids: Sequence[UUID]) -> Sequence[int]:
        """Return the bytes to copy of each inference; blobs that are too large are not copied.

        The index has the size of most inputs; S3 is asked for the others. Raises
        ObjectStoreUnavailable.
        """
        copied = PART_FORMATS[self.job.format].choose_blobs(self.job.blob_choice).copied
        if not copied:
            return [0] * len(uids)
        columns = (_HERE.data_size, *(_HERE[STORAGE_KEYS[blob]] for blob in copied))
        query = select(_HERE.uid, *columns).where(
            _HERE.model == self.job.model, _HERE.uid == any_(literal(uids, _UIDS))
        )
        async with self.engine.connect() as connection:  # none is open while S3 is asked
            rows = {row.uid: row for row in await connection.execute(query)}
        wanted = [(rows.get(uid), blob) for uid in uids for blob in copied]
        one = partial(_measure_one, self.blobs, self.copies.blob)

        def measure() -> list[int]:
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="blobs-head") as executor:
                return [*executor.map(one, *zip(*wanted, strict=True))]

        sizes = await asyncio.to_thread(measure)
        width = len(copied)
        return [sum(sizes[at : at + width]) for at in range(0, len(sizes), width)]


def _measure_one(blobs: Blobs, most: int, row: Any, blob: str) -> int:
    """Return the size of a blob; 0 if it will be missing."""
    text = None if row is None else row._mapping[STORAGE_KEYS[blob]]
    if text is None:
        return 0
    size, key = row.data_size if blob == "data" else None, parse_stored(text)
    if (member := member_of(key.key)) is not None:
        size = member.length
    if size is None and key.bucket not in blobs.buckets.allowed:
        return 0
    try:
        size = blobs.head(key) if size is None else int(size)
    except BlobMissing:
        return 0
    except AccessDenied:  # a HEAD does not tell whether S3 refuses this object alone
        [content] = blobs.get_many([key], limit=most)
        size = len(content) if isinstance(content, bytes) else 0
    return size if size <= most else 0
