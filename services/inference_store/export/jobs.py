"""Export jobs as they are stored: everything that matches, written to the bucket as parts.

1. list    the uids that match, in order, in lists of 10,000 or so. The lists are the snapshot, the
           position at which a restarted process goes on, and what erasures look their uids up in.
2. write   one object for each list. What was erased meanwhile is left out, and counted as `gone`.
3. end     the manifest, which names every part with its SHA-256.

An erasure deletes each part that names something erased. No part is written twice: the export is
`stale` then, without a manifest, and its question can be asked again as another export.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from secrets import token_hex
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args
from uuid import UUID, uuid4

from sqlalchemy import ColumnElement, Select, Text, cast, func, literal, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access import EVERYTHING, AccessScope
from inference_store.export.columns import BlobChoice
from inference_store.index import registrations
from inference_store.index.registrations import match_models
from inference_store.index.tables import (
    export_download,
    export_erased,
    export_job,
    export_part,
    registration,
    replay_item,
)
from inference_store.inference.errors import Invalid, NotFound
from inference_store.inference.events import StorageKey
from inference_store.inference.field_docs import Hidden, Stored
from inference_store.inference.layout import EXPORTS

Confirm: TypeAlias = Callable[[], Awaitable[None]]
"""Raises if the service leads no more."""
State: TypeAlias = Literal[
    "pending", "listing", "writing", "done", "stale", "failed", "cancelling", "cancelled", "expired"
]
STATES: Final[Sequence[State]] = get_args(State)
UNFINISHED: Final[Sequence[State]] = ("pending", "listing", "writing")
"""States in which parts are still to be written."""
REMOVED: Final[Sequence[State]] = ("cancelled", "expired")
"""States of exports whose parts are deleted."""
REPLAY: Final = "replay"
"""The format of jobs that send their members again instead of writing them (`replay/`)."""
_HERE: Final = export_job.c
_LOCK: Final = 7_302_042
_PAGE_BYTES: Final = 1_048_576
"""Of the documents of a page, unless the first one has more."""
_MOST_REMOVED: Final = 100
MOST_ERROR_CHARACTERS: Final = 2000
"""Of an error that is recorded."""


class ExportJob(Stored):
    """An export: what is written, for whom, how far it is."""

    id: UUID
    model: Hidden[int]
    format: str
    """parquet, arrow, csv, jsonl, webdataset or chariot; of a replay `replay`."""
    document: Hidden[Mapping[str, Any]]
    """`filter` as it was written and `saved` as it was resolved, `since` and `until`, `include`,
    `blobs`; once it has begun `keys`, which give its parts the same columns. Both forms of the
    filter are null without one, and after an erasure took its values."""
    state: State
    requested_by: str
    requested_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime
    """From then on its parts are deleted."""
    listed_to: Hidden[UUID | None]
    members: int
    """Inferences that matched."""
    lists: Hidden[int]
    """Lists of members, each of which becomes a part."""
    written: Hidden[int]
    """Parts that are written."""
    rows: int
    """Inferences in the parts that are written."""
    bytes: int
    """Of the parts that are written."""
    gone: int
    """Members that were erased before their part was written."""
    missing: int
    """Blobs that the parts should have and do not: erased, not in the bucket, or too large."""
    parts_deleted: int
    """Parts that erasures deleted because they contained something erased."""
    inferences_deleted: int
    """Inferences in those parts, erased or not."""
    error: str | None
    """Why it failed, or waits."""
    retry_at: datetime | None
    erased_by: UUID | None
    """The erasure that removed the values of its filter."""

    @property
    def blob_choice(self) -> BlobChoice:
        """What its parts have of the blobs."""
        choice: BlobChoice = self.document.get("blobs", "none")
        return choice


_COLUMNS: Final = [_HERE[name] for name in ExportJob.model_fields]


class NewExport(NamedTuple):
    """A checked request, which may become a job."""

    model: int
    format: str
    document: Mapping[str, Any]
    requested_by: str
    expires_at: datetime


async def request_export(connection: AsyncConnection, new_export: NewExport) -> ExportJob:
    """Insert an export, and return it; the retention service begins it within seconds.

    Raises NotFound if the model has just been removed: until the transaction ends it stays.
    """
    if not await registrations.keep(connection, [new_export.model]):
        raise NotFound("The model has just been removed.")
    values = {**new_export._asdict(), "id": uuid4(), "state": "pending"}
    inserted = export_job.insert().values(values).returning(*_COLUMNS)
    return ExportJob(**(await connection.execute(inserted)).one()._mapping)


async def find_job(
    connection: AsyncConnection,
    id: UUID,
    *,
    within: AccessScope = EVERYTHING,
    lock: bool = False,
    replays: bool = False,
) -> ExportJob | None:
    """Return an export, or a replay, of a model in the scope. `lock`: against change until the
    transaction ends."""
    query = select(*_COLUMNS).where(_HERE.id == id, match_models(within, _HERE.model))
    query = query.where(_is_registered(), _is_replay(replays))
    jobs = await _read_jobs(connection, query.with_for_update() if lock else query)
    return jobs[0] if jobs else None


async def list_jobs(
    connection: AsyncConnection,
    *,
    model: int | None = None,
    states: Sequence[State] | None = None,
    before: tuple[datetime, UUID] | None = None,
    limit: int = 100,
    within: AccessScope = EVERYTHING,
    replays: bool = False,
) -> tuple[list[ExportJob], bool]:
    """Return exports, or replays, the newest first, and whether there are more; `before`:
    (requested_at, id) of the last one of a page. A page whose filters are large has fewer than
    `limit`."""
    size = func.octet_length(cast(_HERE.document, Text))
    query = select(_HERE.id, size).where(match_models(within, _HERE.model), _is_registered())
    query = query.where(_is_replay(replays))
    if model is not None:
        query = query.where(_HERE.model == model)
    if states is not None:
        query = query.where(_HERE.state.in_(states))
    if before is not None:
        query = query.where(tuple_(_HERE.requested_at, _HERE.id) < before)
    order = (_HERE.requested_at.desc(), _HERE.id.desc())
    sizes = (await connection.execute(query.order_by(*order).limit(limit + 1))).all()
    totals = accumulate(row[1] for row in sizes)
    fitting = max(1, sum(total <= _PAGE_BYTES for total in totals))
    ids = [row.id for row in sizes[: min(limit, fitting)]]
    query_page = select(*_COLUMNS).where(_HERE.id.in_(ids)).order_by(*order)
    return await _read_jobs(connection, query_page), len(sizes) > len(ids)


async def _read_jobs(connection: AsyncConnection, query: Select[Any]) -> list[ExportJob]:
    return [ExportJob(**row._mapping) for row in await connection.execute(query)]


def _is_registered() -> ColumnElement[bool]:
    """Return the condition of exports whose model was not removed; those of others go."""
    return select(registration.c.model).where(registration.c.model == _HERE.model).exists()


def _is_replay(replays: bool) -> ColumnElement[bool]:
    return _HERE.format == REPLAY if replays else _HERE.format != REPLAY


async def list_unfinished(connection: AsyncConnection) -> list[ExportJob]:
    """Return the exports to work on now, the oldest first."""
    query = select(*_COLUMNS).where(_HERE.state.in_(UNFINISHED), _is_due())
    return await _read_jobs(connection, query.order_by(_HERE.requested_at, _HERE.id))


async def list_removable(connection: AsyncConnection) -> list[ExportJob]:
    """Return the first exports whose parts are to be deleted now."""
    has_expired = _HERE.state.not_in(REMOVED) & (_HERE.expires_at <= func.now())
    query = select(*_COLUMNS).where(or_(_HERE.state == "cancelling", has_expired), _is_due())
    query = query.order_by(_HERE.expires_at, _HERE.id).limit(_MOST_REMOVED)
    return await _read_jobs(connection, query)


def _is_due() -> ColumnElement[bool]:
    return or_(_HERE.retry_at.is_(None), _HERE.retry_at <= func.now())


async def count_all_unfinished(connection: AsyncConnection) -> tuple[int, int]:
    """Return how many exports are unfinished, and how many of them are blocked by an error."""
    counts = (func.count(), func.count().filter(_HERE.error.is_not(None)))
    query = select(*counts).where(_HERE.state.in_(UNFINISHED))
    unfinished, waiting = (await connection.execute(query)).one()
    return int(unfinished), int(waiting)


async def count_unfinished(connection: AsyncConnection, *, requested_by: str) -> int:
    """Return how many unfinished exports a caller has; nobody requests one until the transaction
    ends."""
    await connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    query = select(func.count()).where(
        _HERE.requested_by == requested_by, _HERE.state.in_(UNFINISHED)
    )
    return int(await connection.scalar(query) or 0)


async def read_model_id(connection: AsyncConnection, job: ExportJob) -> str:
    """Return the id of an export's model. Raises Invalid if it was removed."""
    names = await registrations.names(connection, [job.model])
    if job.model not in names:
        raise Invalid("The model of this export was removed.")
    return names[job.model]


# Changes of a job's state and counts. Each belongs to the transaction of what it counts.

_FINISHED: Final = {"finished_at": func.coalesce(_HERE.finished_at, func.now())}
_WITHOUT_ERROR: Final = {"error": None, "retry_at": None}
_MOVES: Final[Mapping[State, tuple[Sequence[State], Mapping[str, Any]]]] = {
    "listing": (("pending",), {"started_at": func.now()}),
    "writing": (("listing",), {}),
    "done": (("writing",), _FINISHED | _WITHOUT_ERROR),
    "failed": (UNFINISHED, _FINISHED),
    "cancelling": ((*UNFINISHED, "done", "stale", "failed"), {"retry_at": None}),
    "cancelled": (STATES, _FINISHED | _WITHOUT_ERROR),
    "expired": (STATES, _FINISHED | _WITHOUT_ERROR),
}
"""By state: the states before it, and what is recorded with it. `mark_stale` moves to `stale`."""


async def move_job(connection: AsyncConnection, id: UUID, state: State, **values: Any) -> None:
    """Move a job on to a state; one that is not in a state before it stays as it is."""
    before, also = _MOVES[state]
    await _update(connection, id, before, {"state": state, **also, **values})


async def count_listed(
    connection: AsyncConnection, id: UUID, *, members: int, lists: int, listed_to: UUID
) -> None:
    """Count listed members and new lists, up to a uid."""
    counts = {"members": _HERE.members + members, "lists": _HERE.lists + lists}
    values = {**counts, "listed_to": listed_to, **_WITHOUT_ERROR}
    await _update(connection, id, ("listing",), values)


async def recount(connection: AsyncConnection, id: UUID) -> None:
    """Count the parts again; called with every change of one."""
    here = export_part.c
    is_written, is_stale = here.state == "written", here.state == "stale"
    sums = {
        "rows": func.sum(here.rows).filter(is_written),
        "bytes": func.sum(here.bytes).filter(is_written),
        "gone": func.sum(here.gone),
        "missing": func.sum(here.missing).filter(is_written),
        "inferences_deleted": func.sum(here.rows).filter(is_stale),
    }
    counted = (
        select(
            here.export,
            func.count().filter(is_written).label("written"),
            func.count().filter(is_stale).label("parts_deleted"),
            *(func.coalesce(total, 0).label(name) for name, total in sums.items()),
        )
        .where(here.export == id)
        .group_by(here.export)
        .subquery("counted")
    )
    values = {column.name: column for column in counted.c if column.name != "export"}
    where = (_HERE.id == id, counted.c.export == _HERE.id)
    await connection.execute(export_job.update().where(*where).values(values))


async def finish_job(connection: AsyncConnection, id: UUID) -> State:
    """Record that no part is left to write; return whether it is `done` or `stale`."""
    await move_job(connection, id, "done")
    # another statement: it sees what an erasure committed while this one waited for the job's lock
    return "stale" if await mark_stale(connection, id) else "done"


async def mark_stale(connection: AsyncConnection, id: UUID) -> bool:
    """Record of an export that is done that an erasure took a part of it; False: none did."""
    here = export_part.c
    is_stale = select(here.number).where(here.export == id, here.state == "stale").exists()
    done = export_job.update().where(_HERE.id == id, _HERE.state == "done", is_stale)
    return bool((await connection.execute(done.values(state="stale"))).rowcount)


async def delay_job(
    connection: AsyncConnection, id: UUID, error: str | None, *, seconds: float
) -> None:
    """Record why a job waits, if for an error, and that it goes on after some seconds."""
    later = func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    values = {"error": error and error[:MOST_ERROR_CHARACTERS], "retry_at": later}
    await _update(connection, id, STATES, values)


async def _update(
    connection: AsyncConnection, id: UUID, states: Sequence[State], values: Mapping[str, Any]
) -> None:
    where = (_HERE.id == id, _HERE.state.in_(states))
    await connection.execute(export_job.update().where(*where).values(dict(values)))


async def delete_old_jobs(connection: AsyncConnection, *, older_than_seconds: float) -> int:
    """Delete some exports whose parts were deleted, long ago or with their model, with their lists,
    downloads and erased members; return how many."""
    cutoff = func.now() - func.make_interval(0, 0, 0, 0, 0, 0, older_than_seconds)
    is_old = (_HERE.finished_at < cutoff) & (_HERE.expires_at < cutoff)
    query = select(_HERE.id).where(_HERE.state.in_(REMOVED), is_old | ~_is_registered())
    ids = list((await connection.execute(query.limit(_MOST_REMOVED))).scalars())
    for table in (export_part, export_download, export_erased):
        await connection.execute(table.delete().where(table.c.export.in_(ids)))
    await connection.execute(replay_item.delete().where(replay_item.c.job.in_(ids)))
    await connection.execute(export_job.delete().where(_HERE.id.in_(ids)))
    return len(ids)


# The parts of an export: the lists of its members in Postgres, the objects that are written from
# them, and their keys in the bucket.
#
# exports/<export>/parts/00001-<random>.parquet
# exports/<export>/manifest.json          every part with its SHA-256; only while none was deleted

PARTS: Final = "parts/"
MANIFEST: Final = "/manifest.json"
UID_BYTES: Final = 16
Sha256: TypeAlias = bytes
PartState: TypeAlias = Literal["listed", "writing", "written", "stale", "removed"]
_PART: Final = export_part.c
_SHOWN: Final = [column for column in export_part.c if column.name != "uids"]


def make_prefix(export: UUID) -> str:
    """Return the text that all keys of an export begin with."""
    return f"{EXPORTS}{export}/"


def make_manifest_key(export: UUID) -> str:
    """Return the key of an export's manifest."""
    return f"{EXPORTS}{export}{MANIFEST}"


def make_part_key(export: UUID, number: int, suffix: str) -> str:
    """Return a new key for a part: each attempt to write it has its own, so that a process that
    lost its leadership overwrites nothing."""
    return f"{make_prefix(export)}{PARTS}{number:05}-{token_hex(4)}{suffix}"


class Part(Stored):
    """A list of members, and the object that is written from it; without the uids themselves."""

    export: Hidden[UUID]
    number: int
    """From 1."""
    model: Hidden[int]
    first: Hidden[UUID]
    last: Hidden[UUID]
    state: PartState
    storage_key: Hidden[str | None]
    """Null: there is no object."""
    rows: int | None
    bytes: int | None
    sha256: Sha256 | None
    written_at: datetime | None
    gone: int
    """Members that were erased before it was written."""
    missing: int
    """Blobs that the object should have and does not."""


def pack_uids(uids: Iterable[UUID]) -> bytes:
    """Return uids as a list has them: 16 bytes each."""
    return b"".join(uid.bytes for uid in uids)


def unpack_uids(packed: bytes) -> list[UUID]:
    """Return the uids of a list."""
    return [UUID(bytes=packed[at : at + UID_BYTES]) for at in range(0, len(packed), UID_BYTES)]


async def read_members(connection: AsyncConnection, export: UUID, number: int) -> list[UUID]:
    """Return the uids of a list, in order; none if there is no such list."""
    query = select(_PART.uids).where(_PART.export == export, _PART.number == number)
    return unpack_uids(bytes(await connection.scalar(query) or b""))


async def put_members(
    connection: AsyncConnection, export: UUID, number: int, model: int, uids: Sequence[UUID]
) -> None:
    """Insert the next list, or replace the last one by a longer one."""
    values = {"model": model, "first": uids[0], "last": uids[-1], "uids": pack_uids(uids)}
    where = (_PART.export == export, _PART.number == number)
    updated = await connection.execute(export_part.update().where(*where).values(values))
    if not updated.rowcount:
        new = {"export": export, "number": number, "state": "listed", **values}
        await connection.execute(export_part.insert().values(new))


async def find_next(connection: AsyncConnection, export: UUID) -> Part | None:
    """Return the first part that is still to be written."""
    query = select(*_SHOWN).where(_PART.export == export, _PART.state.in_(("listed", "writing")))
    row = (await connection.execute(query.order_by(_PART.number).limit(1))).first()
    return None if row is None else Part(**row._mapping)


async def list_parts(
    connection: AsyncConnection,
    export: UUID,
    *,
    after: int = 0,
    limit: int | None = None,
    lock: bool = False,
) -> list[Part]:
    """Return parts in order, those after the number `after`.

    `lock`: until the transaction ends no erasure takes a member. So whoever is given links is known
    to every erasure that comes later, and is given none to what one before has taken from.
    """
    query = select(*_SHOWN).where(_PART.export == export, _PART.number > after)
    query = query.order_by(_PART.number).limit(limit)
    rows = await connection.execute(query.with_for_update(read=True) if lock else query)
    return [Part(**row._mapping) for row in rows]


async def change_part(
    connection: AsyncConnection, part: Part, state: PartState, **values: Any
) -> bool:
    """Move a part on if it is still as it was read; False: an erasure, or another leader, came
    first."""
    changed = export_part.update().where(*_match(part)).values(state=state, **values)
    return bool((await connection.execute(changed)).rowcount)


async def is_current(connection: AsyncConnection, part: Part) -> bool:
    """Check whether a part is still as it was read."""
    return await connection.scalar(select(_PART.number).where(*_match(part))) is not None


async def list_writing(connection: AsyncConnection) -> list[str]:
    """Return the keys of all parts that are being written, of every export."""
    query = select(_PART.storage_key).where(_PART.state == "writing")
    return [str(key) for key in (await connection.execute(query)).scalars() if key is not None]


async def find_named(connection: AsyncConnection, keys: Sequence[StorageKey]) -> set[StorageKey]:
    """Return those of the keys that parts name, and the manifests of exports that are done."""
    query = select(_PART.storage_key).where(_PART.storage_key.in_([str(key) for key in keys]))
    named = {str(key) for key in (await connection.execute(query)).scalars()}
    manifest = literal(EXPORTS) + cast(_HERE.id, Text) + literal(MANIFEST)
    done = select(manifest).where(_HERE.state == "done", manifest.in_([key.key for key in keys]))
    manifests = set((await connection.execute(done)).scalars())
    return {key for key in keys if str(key) in named or key.key in manifests}


async def remove_parts(connection: AsyncConnection, export: UUID, *, keep_lists: bool) -> None:
    """Record that all objects are deleted. `keep_lists`: copies may exist, so that erasures have
    to find what was exported."""
    removed = export_part.update().values(state="removed", storage_key=None)
    changed = removed if keep_lists else export_part.delete()
    await connection.execute(changed.where(_PART.export == export))


def _match(part: Part) -> Sequence[ColumnElement[bool]]:
    return (
        _PART.export == part.export,
        _PART.number == part.number,
        _PART.state == part.state,
        _PART.storage_key.is_not_distinct_from(part.storage_key),
    )
