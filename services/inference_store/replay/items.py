"""Replays as they are stored: jobs whose members are sent again, and what came of each.

The job is a row of the jobs of exports (export/jobs.py), of the format `replay`: there it is
listed, counted, delayed, cancelled and deleted. Its members are rows of their own, which say how
far each is. Such a row goes with either of its two inferences, in the transaction that deletes
that inference.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args
from uuid import UUID

from sqlalchemy import ARRAY, any_, bindparam, func, literal, select, tuple_
from sqlalchemy import UUID as UUID_TYPE
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from inference_store.export import jobs
from inference_store.export.jobs import Confirm, ExportJob
from inference_store.export.listing import continue_question
from inference_store.index.sidecars import Identity, among, by_model
from inference_store.index.tables import (
    CODE_POINTS,
    erasing,
    erasure,
    erasure_held,
    inference,
    metadata_key,
    metadata_string,
    model_key,
    replay_item,
)
from inference_store.inference.events import received_at_of, uid_floor
from inference_store.inference.field_docs import Hidden, Stored
from inference_store.inference.stored_requests import REPLAY_OF, ReplayMark
from inference_store.platform.failpoints import failpoint
from inference_store.query.deadline import Deadline
from inference_store.query.search import find_by_time

ItemState: TypeAlias = Literal[
    "listed", "sending", "waiting", "compared", "missing", "skipped", "erased"
]
STATES: Final[Sequence[ItemState]] = get_args(ItemState)
UNSETTLED: Final[Sequence[ItemState]] = ("listed", "sending", "waiting")
_HERE: Final = replay_item.c
_LISTED: Final = 10_000
_SECONDS: Final = 30.0
_WHOLE: Final = 1 << 64
_BEHIND: Final = timedelta(days=1)
"""How far the clock of one proxy may be behind that of another."""


class ReplayPlan(NamedTuple):
    """What a replay does with what matches."""

    to_model: int
    """The model that answers."""
    model: str | None
    """Its name in calls; None: the one that was called."""
    version: str | None
    """None: whichever the server chooses, or, of the same model, the one that was called."""
    share: float
    """Of the matches, 0 to 1; the same ones each time."""
    most: int
    rate: float
    """The most calls a second."""
    tolerance: float
    """Numbers that differ by no more are equal, relative to the larger one and in itself."""

    @classmethod
    def of(cls, job: ExportJob) -> "ReplayPlan":
        """Return the plan of a job."""
        return cls(**job.document["replay"])

    def samples(self, uid: UUID) -> bool:
        """Return whether an inference belongs to the sample: by its uid alone."""
        digest = int.from_bytes(blake2b(uid.bytes, digest_size=8).digest(), "big")
        return digest < self.share * _WHOLE


class ReplayItem(Stored):
    """One inference that is sent again."""

    job: Hidden[UUID]
    uid: UUID
    """The inference."""
    state: ItemState
    reason: str | None
    """Why it was not sent."""
    http_status: int | None
    """Of the answer to the replayed call; `grpc_code` over gRPC."""
    grpc_code: int | None
    to_uid: UUID | None
    """The inference that the call became."""
    disagreement: float | None
    difference: Mapping[str, Any] | None


_SHOWN: Final = [_HERE[name] for name in ReplayItem.model_fields]


async def list_some(engine: AsyncEngine, job: ExportJob, confirm: Confirm) -> None:
    """List the next members; with the last ones, let the sending begin. Raises OutOfTime and
    Invalid."""
    plan = ReplayPlan.of(job)
    async with engine.connect() as connection:
        query = await continue_question(connection, job)
        page = await find_by_time(
            connection,
            query,
            limit=_LISTED,
            deadline=Deadline.after(_SECONDS),
            goes_on=job.listed_to is not None,
        )
        replays = await _find_replayed(connection, job.model, page.uids)
    is_full = len(page.uids) == _LISTED
    position = page.uids[-1] if is_full else page.searched
    chosen = [uid for uid in page.uids if plan.samples(uid) and uid not in replays]
    chosen = chosen[: plan.most - job.members]
    async with engine.begin() as connection:
        current = await jobs.find_job(connection, job.id, lock=True, replays=True)
        if current is None or current.state != "listing":
            return
        await confirm()
        rows = [{"job": job.id, "model": job.model, "uid": uid} for uid in chosen]
        if rows:
            inserted = insert(replay_item).values(state="listed").on_conflict_do_nothing()
            await connection.execute(inserted, rows)
        if position is not None:
            counts = {"members": len(chosen), "lists": 0}
            await jobs.count_listed(connection, job.id, **counts, listed_to=position)
        if not (is_full or page.out_of_time) or job.members + len(chosen) >= plan.most:
            await jobs.move_job(connection, job.id, "writing")


async def _find_replayed(
    connection: AsyncConnection, model: int, uids: Sequence[UUID]
) -> set[UUID]:
    """Return those that are replays themselves: each is sent once, as the original."""
    if not uids:
        return set()
    query = select(inference.c.uid).where(among(inference, model, uids))
    query = query.where(inference.c.inference_id.like("replay-%"))
    return set((await connection.execute(query)).scalars())


async def list_next(connection: AsyncConnection, job: UUID, limit: int) -> list[UUID]:
    """Return the next members to send, the oldest first."""
    query = select(_HERE.uid).where(_HERE.job == job, _HERE.state == "listed")
    return list((await connection.execute(query.order_by(_HERE.uid).limit(limit))).scalars())


async def note_sending(
    engine: AsyncEngine, job: UUID, uids: Sequence[UUID], confirm: Confirm
) -> list[UUID]:
    """Note which calls are about to be made, and return them: those that are still to be sent.
    Committed before the first of them is."""
    failpoint("replay.send.before")
    async with engine.begin() as connection:
        current = await jobs.find_job(connection, job, lock=True, replays=True)
        if current is None or current.state != "writing":
            return []
        await confirm()
        where = (_HERE.job == job, _HERE.uid.in_(uids), _HERE.state == "listed")
        noted = replay_item.update().where(*where).returning(_HERE.uid)
        values = {"state": "sending", "sent_at": func.clock_timestamp()}
        sent = list((await connection.execute(noted.values(values))).scalars())
    failpoint("replay.send.noted")
    return sorted(sent)


async def change_items(
    connection: AsyncConnection, job: UUID, changes: Mapping[UUID, Mapping[str, Any]]
) -> None:
    """Change members; one that went meanwhile stays away."""
    by_names: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for uid, values in changes.items():
        names = tuple(sorted(values))
        by_names.setdefault(names, []).append({"of": uid, **values})
    for names, rows in by_names.items():
        changed = replay_item.update().where(_HERE.job == job, _HERE.uid == bindparam("of"))
        await connection.execute(changed.values({name: bindparam(name) for name in names}), rows)


async def list_unsettled(connection: AsyncConnection, job: UUID, limit: int) -> Sequence[Any]:
    """Return members whose call was made, or may have been, with the seconds since then, the first
    one first."""
    age = func.extract("epoch", func.clock_timestamp() - _HERE.sent_at).label("age")
    query = select(_HERE.uid, _HERE.state, age)
    query = query.where(_HERE.job == job, _HERE.state.in_(("sending", "waiting")))
    return (await connection.execute(query.order_by(_HERE.sent_at).limit(limit))).all()


async def list_items(
    connection: AsyncConnection,
    job: UUID,
    states: Sequence[ItemState],
    *,
    after: tuple[float, UUID] | None,
    limit: int,
) -> list[ReplayItem]:
    """Return members in these states, those that disagree most first."""
    order = (-func.coalesce(_HERE.disagreement, 0.0), _HERE.uid)
    query = select(*_SHOWN).where(_HERE.job == job, _HERE.state.in_(states))
    if after is not None:
        query = query.where(tuple_(*order) > tuple_(literal(-after[0]), literal(after[1])))
    rows = await connection.execute(query.order_by(*order).limit(limit))
    return [ReplayItem(**row._mapping) for row in rows]


# What came of a replay so far, in numbers.

_NUMBERS: Final[Mapping[str, tuple[str, str]]] = {
    "boxes_matched": ("boxes", "matched"),
    "boxes_lost": ("boxes", "lost"),
    "boxes_new": ("boxes", "new"),
    "values_different": ("values", "different"),
    "texts_different": ("texts", "different"),
}
_SIDES: Final = ("before", "after")


async def count_items(
    connection: AsyncConnection, ids: Sequence[UUID]
) -> dict[UUID, dict[str, Any]]:
    """Return by job: its members by state and, of those skipped, by reason; and the sums of what
    was compared. None for a sum that nothing is known of."""
    state, of = _HERE.state, _HERE.difference
    compared = state == "compared"
    columns = [
        _HERE.job,
        *(func.count().filter(state == name).label(name) for name in STATES),
        func.count().filter(compared, _HERE.disagreement > 0).label("disagreeing"),
        func.count().filter(compared, of[("label", "flipped")].as_boolean()).label("flips"),
        func.count().filter(compared, of[("ok", "flipped")].as_boolean()).label("outcomes"),
        func.count().filter(compared, of[("version", "other")].as_boolean()).label("versions"),
        *(
            func.coalesce(func.sum(of[path].as_integer()).filter(compared), 0).label(name)
            for name, path in _NUMBERS.items()
        ),
        *(
            func.percentile_cont(0.5)
            .within_group(of[("latency_ms", side)].as_float())
            .label(f"latency_{side}")
            for side in _SIDES
        ),
        *(func.sum(of[("tokens", side)].as_integer()).label(f"tokens_{side}") for side in _SIDES),
    ]
    query = select(*columns).where(_HERE.job.in_(ids)).group_by(_HERE.job)
    counts = {row.job: dict(row._mapping) for row in await connection.execute(query)}
    nothing = {c.name: None if "_before" in c.name or "_after" in c.name else 0 for c in columns}
    reasons = select(_HERE.job, _HERE.reason, func.count()).where(
        _HERE.job.in_(ids), state == "skipped"
    )
    by_reason: dict[UUID, dict[str, int]] = {job: {} for job in ids}
    for job, reason, number in await connection.execute(
        reasons.group_by(_HERE.job, _HERE.reason).order_by(_HERE.reason)
    ):
        by_reason[job][reason] = number
    return {job: {**counts.get(job, nothing), "reasons": by_reason[job]} for job in ids}


async def is_settled(connection: AsyncConnection, job: UUID) -> bool:
    """Check whether nothing is left to send, and no capture is waited for."""
    left = select(_HERE.uid).where(_HERE.job == job, _HERE.state.in_(UNSETTLED)).exists()
    return not await connection.scalar(select(left))


# What an erasure takes.


async def forget_members(
    connection: AsyncConnection, identities: Iterable[Identity], *, is_requested: bool
) -> None:
    """Delete what replays know of inferences that are erased, as the original or as its replay.

    `is_requested`: not by a policy. Then what may still arrive of them is remembered.
    """
    for model, uids in by_model(identities):
        of = among(replay_item, model, uids)
        if is_requested:
            coming = _HERE.state.in_(("sending", "waiting", "missing"))
            await connection.execute(replay_item.update().where(of, coming).values(state="erased"))
        gone = replay_item.delete().where(of, _HERE.state != "erased")
        await connection.execute(gone)
        became = _HERE.to_uid == any_(literal(uids, ARRAY(UUID_TYPE(as_uuid=True))))
        await connection.execute(replay_item.delete().where(_HERE.to_model == model, became))


async def find_orphaned(connection: AsyncConnection, inference_ids: Iterable[str]) -> set[str]:
    """Return those of the ids that are of replays whose originals were erased by request, or are
    being erased: they may not be stored."""
    marks = {mark: id for id in inference_ids if (mark := ReplayMark.of_id(id)) is not None}
    if not marks:
        return set()
    query = select(_HERE.job, _HERE.uid, _HERE.model, _HERE.state)
    named = tuple_(_HERE.job, _HERE.uid).in_([tuple(mark) for mark in marks])
    items = list(await connection.execute(query.where(named)))
    # one after the other: Citus joins no spread table with these
    here = erasing.c
    erasures: dict[Identity, UUID] = {}
    for model, uids in by_model((item.model, item.uid) for item in items):
        of = (among(erasing, model, uids), here.scope == "inference")
        marked = await connection.execute(select(here.uid, here.erasure).where(*of))
        erasures |= {(model, row.uid): row.erasure for row in marked}
    asked = select(erasure.c.id).where(erasure.c.id.in_(erasures.values()))
    asked = asked.where(erasure.c.cause == "request")
    requested = set((await connection.execute(asked)).scalars()) if erasures else set()
    return {
        marks[ReplayMark(item.job, item.uid)]
        for item in items
        if item.state == "erased" or erasures.get((item.model, item.uid)) in requested
    }


async def find_replays(
    connection: AsyncConnection, id: UUID, originals: Sequence[Identity]
) -> list[tuple[int, list[UUID]]]:
    """Return the stored replays of some inferences that an erasure neither has marked nor knows as
    held, by model: those that jobs know, and those whose metadata and id say it."""
    found: set[Identity] = set()
    key = select(metadata_key.c.key).where(metadata_key.c.name == REPLAY_OF).scalar_subquery()
    models = select(model_key.c.model).where(model_key.c.key == key)
    there, here = metadata_string.c, inference.c
    uids = [uid for _, uid in originals]
    texts = literal([str(uid) for uid in uids], ARRAY(CODE_POINTS))
    first = uid_floor(received_at_of(min(uids)) - _BEHIND)
    for model in (await connection.execute(models)).scalars():
        named = select(there.model, there.uid).join(
            inference, (here.model == there.model) & (here.uid == there.uid)
        )
        named = named.where(
            *(there.model == model, here.model == model, there.key == key),
            *(there.uid >= first, here.uid >= first),
            there.value == any_(texts),
            # metadata can be edited, and ids cannot
            here.inference_id.like("replay-%"),
            func.right(here.inference_id, 36) == there.value,
        )
        found |= {(row.model, row.uid) for row in await connection.execute(named)}
    for model, some in by_model(originals):
        known = select(_HERE.to_model, _HERE.to_uid)
        known = known.where(among(replay_item, model, some), _HERE.to_uid.is_not(None))
        found |= {(row.to_model, row.to_uid) for row in await connection.execute(known)}
    for table in (erasing, erasure_held):
        for model, some in by_model(found):
            ours = select(table.c.uid).where(table.c.erasure == id, among(table, model, some))
            found -= {(model, uid) for uid in (await connection.execute(ours)).scalars()}
    return by_model(found)
