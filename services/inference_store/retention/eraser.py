"""Marks the inferences of an erasure, batch by batch, and erases what is marked. The order makes
every crash harmless:

1. claim    marks that no legal hold protects, and objects that nothing else uses; in the fence, in
            one short transaction
2. delete   the objects, in every version (scope input: also the request in metadata and sidecar)
3. verify   by listing again that they are gone
4. forget   rows, marks, tombstones and counts; tell the certificate and the exports that name some
            of it; in one transaction

After the last batch the residual data is removed (`remove_residual`), with the examples of the key
registry, and the objects of exports that hold some of it (`delete_copies`); then the erasure ends
with its certificate. Before that the ledger has that it ended: after a restore, no hold that
comes later brings back what was erased.

A crash before 4 leaves the marks, so no reader sees the inferences, and the next run begins again
at 1: deleting an object twice is no error. If an object still exists (S3 has locked it, or a right
is missing), its mark stays, so that the row that names it is not lost.

Batches overlap, in this order: while the objects of one batch are deleted, the rows of the batch
before it are deleted, and the batch after it is claimed and its versions are listed.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Literal, TypeAlias
from uuid import UUID

import structlog

from inference_store.erasure import object_claims, progress, requests, rows, segment_claims
from inference_store.erasure.batches import describe_batch, describe_entry
from inference_store.erasure.held_deletions import IN_LEDGER, describe_ended, find_spared, has_marks
from inference_store.erasure.locks import fence_exclusive
from inference_store.erasure.pending_deletions import PendingDeletion, Position, list_pending
from inference_store.erasure.progress import STOPPED, Erasure, State
from inference_store.erasure.runs import count_failure
from inference_store.erasure.selection import find_requested, find_unmarked
from inference_store.index.sidecars import Identity, by_model
from inference_store.inference.errors import HoldUnreadable, StoreError, Unavailable
from inference_store.platform import traces
from inference_store.platform.failpoints import failpoint
from inference_store.platform.metrics import STEP_SECONDS
from inference_store.platform.traces import stage
from inference_store.query import lookup
from inference_store.query.deadline import OutOfTime
from inference_store.replay.items import find_replays
from inference_store.truth.awaiting import find_of_ids, find_of_subject

from .batch_eraser import NOTHING, Batch, erase_batch
from .certifier import end_erasure
from .exporter import delete_copies
from .leader import ACTOR, Leader
from .residual import remove_residual, remove_subject

_log = structlog.get_logger()
# Batches that are claimed and not finished: a new hold finds all of them claimed.
_UNDER_WAY = 2
# before every position
_START: Position = (0, "", UUID(int=0))
MarkResult: TypeAlias = Literal["all", "not_yet", "over"]
_MARKED = 5_000
_PAGE = 1_000
_LOOK_SECONDS = 1.0


async def mark(leader: Leader, erasure: Erasure, *, seconds: float = inf) -> MarkResult:
    """Mark the inferences of an erasure, for at most `seconds`.

    `all`: it may be erased; `not_yet`: call again; `over`: it was cancelled, its rest was
    waived, or its filter could not be evaluated, which is tried again like other failures.
    Raises the errors of the database, and Unavailable: try again later.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        await leader.check.confirm_step()
        async with leader.engine.connect() as connection:
            unmarked = await find_unmarked(connection, erasure)
            state = await progress.find_state(connection, erasure.id)
        if state in STOPPED:
            await unmark(leader, erasure)
            return "over"
        try:
            if state == "giving_up":
                await _waive_held(leader, erasure)
                return "over"
            if unmarked is None:
                # Search once in a process, and again after a hold is released: removed
                # events stay removed.
                if erasure.id not in leader.searched:
                    await _mark_replays(leader, erasure)
                    await _mark_waiting_truth(leader, erasure)
                    await remove_subject(leader, erasure)
                    leader.searched.add(erasure.id)
                return "all"
            await _mark_batch(leader, erasure, *unmarked)
        except Unavailable:
            raise  # the ledger is unavailable: the service waits, and the erasure with it
        except (OutOfTime, StoreError) as error:
            await _fail(leader, erasure, error)
            return "over"
    return "not_yet"


async def _mark_batch(leader: Leader, erasure: Erasure, model: int, after: UUID | None) -> None:
    failpoint("retention.mark.before")
    with stage(STEP_SECONDS, "mark"):
        async with leader.engine.begin() as connection:
            if not await progress.advance_erasure(connection, erasure.id, "marking"):
                return
            uids, position = await find_requested(
                connection, erasure, model, after=after, limit=_MARKED
            )
            batch = await describe_batch(connection, erasure, model, uids, position=position)
        await leader.ledger.write("erasure_batch", batch, actor=ACTOR)
    failpoint("retention.mark.after")


async def _mark_replays(leader: Leader, erasure: Erasure) -> None:
    """Mark the replays of all that a request has marked, and theirs, in any model.

    One that is stored from the fence on is not looked for: the ingester sees the marks.
    """
    if erasure.cause != "request":
        return
    async with leader.engine.begin() as connection:
        await fence_exclusive(connection)
    after, is_new = None, False
    while True:
        async with leader.connect() as connection:
            page = await list_pending(connection, erasure.id, after=after, limit=_PAGE)
            marked = [(mark.model, mark.uid) for mark in page]
            found = await find_replays(connection, erasure.id, marked) if page else []
            batches = [await describe_batch(connection, erasure, *of_model) for of_model in found]
        for batch in batches:
            del batch["up_to"]
            await leader.ledger.write("erasure_batch", batch, actor=ACTOR)
            is_new = True
        after = page[-1].position if page else None
        if after is None and not is_new:
            return
        is_new = is_new and after is not None


async def _mark_waiting_truth(leader: Leader, erasure: Erasure) -> None:
    """Mark the truth that waits for what a request names, or for the data of what it has marked: it
    goes as inferences do, with its bytes, and the ledger has it."""
    if erasure.cause != "request":
        return
    asked, subject = erasure.asked or {}, requests.find_subject(erasure.asked)
    ids = asked.get("inference_ids", ())
    named = {uid for uid in map(lookup.parse_uid, ids) if uid is not None}
    async with leader.connect() as connection:
        models = await progress.list_models(connection, erasure)
    for model in models:
        async with leader.connect() as connection:
            await _mark_waiting(
                leader, erasure, model, await find_of_ids(connection, model, ids, named)
            )
        after: UUID | None = UUID(int=0)
        while subject is not None and after is not None:
            async with leader.connect() as connection:
                found, after = await find_of_subject(
                    connection, model, subject.key, subject.value, after
                )
            await _mark_waiting(leader, erasure, model, found)
    position: Position | None = _START
    while position is not None:
        async with leader.connect() as connection:
            page = await list_pending(connection, erasure.id, after=position, limit=_PAGE)
            marked = by_model((mark.model, mark.uid) for mark in page)
            pairs = [
                (model, await find_of_ids(connection, model, (), uids)) for model, uids in marked
            ]
        for model, found in pairs:
            await _mark_waiting(leader, erasure, model, found)
        position = page[-1].position if page else None


async def _mark_waiting(leader: Leader, erasure: Erasure, model: int, uids: list[UUID]) -> None:
    if uids:
        async with leader.connect() as connection:
            marks = [(uid, None, None, None, None) for uid in uids]
            batch = await describe_entry(connection, erasure, model, marks)
        await leader.ledger.write("erasure_batch", batch, actor=ACTOR)


async def unmark(leader: Leader, erasure: Erasure) -> None:
    """Remove the marks of an erasure that is cancelled."""
    await leader.repeat(partial(requests.remove_pending_of, id=erasure.id, limit=_MARKED))
    await leader.ledger.write("erasure_cancelled", {"erasure": str(erasure.id)}, actor=ACTOR)
    _log.info("erasure", action="erasure", id=str(erasure.id), state="cancelled")


async def _waive_held(leader: Leader, erasure: Erasure) -> None:
    while True:
        await leader.check.confirm_step()
        async with leader.engine.connect() as connection:
            body = await requests.find_held_rest(connection, erasure, limit=_MARKED)
        if body is None:
            break
        await leader.ledger.write("erasure_given_up", body, actor=ACTOR)
    async with leader.engine.begin() as connection:
        # its certificate is next; without a key, the certifying step ends the erasure
        state = await progress.finish_erasure(connection, erasure, error=None, certifying=True)
    _log.info("erasure", action="erasure", id=str(erasure.id), state=state)


async def _fail(leader: Leader, erasure: Erasure, error: Exception) -> None:
    count_failure("hold_unreadable" if isinstance(error, HoldUnreadable) else "other")
    message = str(error) or "the filter cannot be answered in two minutes: narrow it"
    async with leader.engine.begin() as connection:
        await progress.fail_erasure(connection, erasure.id, message)
    _log.warning("erasure", action="erasure", id=str(erasure.id), state="failed", error=message)


async def finish(leader: Leader, erasure: Erasure, *, seconds: float = inf) -> State | None:
    """Erase everything that was marked for an erasure, and return its last state.

    None: it did not end within `seconds`; the next call continues. Raises the error of an
    unavailable server; it can be called again.
    """
    after, error = leader.positions.pop(erasure.id, (None, None))
    until = time.monotonic() + seconds
    attributes = {"inference_store.erasure.scope": erasure.scope}
    with traces.ended(traces.begin("erasure", attributes=attributes)) as span:
        after, fault = await _erase_all(leader, erasure, after, until)
        error = error or fault
        if after is not None:
            leader.positions[erasure.id] = after, error
            return None
        await remove_residual(leader, erasure)
        copy_fault = await delete_copies(leader, erasure)
        await _note_end(leader, erasure)
        error, copies_left = error or copy_fault, copy_fault is not None
        state = await conclude(leader, erasure, error=error, copies_left=copies_left)
        if state == "failed":
            traces.failed(span, "ErasureFailure")
    return state


async def conclude(
    leader: Leader, erasure: Erasure, *, error: str | None, copies_left: bool = False
) -> State:
    """Set the last state of an erasure, and sign its certificate. Arguments as `finish_erasure`."""
    failpoint("retention.finish.before")
    async with leader.engine.begin() as connection:
        state = await progress.finish_erasure(
            connection,
            erasure,
            error=error,
            certifying=leader.certifier is not None,
            copies_left=copies_left,
        )
        erasure = await progress.find_erasure(connection, erasure.id) or erasure
    failpoint("retention.finish.after")
    state = await end_erasure(leader.engine, leader.certifier, erasure, state)
    _log.info("erasure", action="erasure", id=str(erasure.id), state=state, error=error)
    return state


async def _note_end(leader: Leader, erasure: Erasure) -> None:
    if erasure.cause not in IN_LEDGER:
        return
    async with leader.engine.connect() as connection:
        if await has_marks(connection, erasure.id):
            return
    await leader.ledger.write(
        "erasure_ended", lambda connection: describe_ended(connection, erasure.id), actor=ACTOR
    )


async def _erase_all(
    leader: Leader, erasure: Erasure, after: Position | None, until: float
) -> tuple[Position | None, str | None]:
    under_way: deque[tuple[asyncio.Task[str | None], Batch]] = deque()
    faults: list[str | None] = []

    def list_in_progress() -> set[Identity]:
        return set().union(*(batch.identities for task, batch in under_way if not task.done()))

    try:
        while True:
            if len(under_way) == _UNDER_WAY:
                faults.append(await under_way.popleft()[0])
            batch, fault = await _claim_next(leader, erasure, after, list_in_progress)
            faults.append(fault)
            after = batch.last
            if after is None:
                break
            under_way.append((asyncio.create_task(erase_batch(leader, erasure, batch)), batch))
            if time.monotonic() > until:
                break
        while under_way:
            faults.append(await under_way.popleft()[0])
    finally:
        # wait for the batches that have begun, also after an error
        await asyncio.gather(*(task for task, _ in under_way), return_exceptions=True)
    return after, next((reason for reason in faults if reason is not None), None)


async def step(
    leader: Leader,
    erasure: Erasure,
    after: Position | None,
    *,
    whole_span: bool = False,
    patient: bool = False,
) -> tuple[Position | None, str | None, bool]:
    """Erase at most one batch of marks after `after`; return the last one, the error, and whether
    something was left because of a hold.

    No last one: there are none, or it was cancelled, or, with an error, nothing may be erased.
    `patient`: more is being marked, so that segments wait until all of each is.
    """
    batch, fault = await _claim_next(leader, erasure, after, patient=patient)
    if fault is None:
        fault = await erase_batch(leader, erasure, batch, whole_span=whole_span)
    return batch.last, fault, batch.has_spared


async def _claim_next(
    leader: Leader,
    erasure: Erasure,
    after: Position | None,
    list_in_progress: Callable[[], Set[Identity]] = frozenset,
    *,
    patient: bool = False,
) -> tuple[Batch, str | None]:
    """Claim the next marks, and those of their objects that may be deleted; return also why nothing
    may be.

    A hold that is placed before the fence is released keeps the inferences that it protects; a
    later one lists those claimed here. From the commit on the erasure cannot be cancelled. If
    holds protect some of the marks, only these are set apart, through the ledger, and the batch
    is empty: the next one begins at the same place. `list_in_progress`: of batches under way then.
    """
    await leader.check.confirm_step()
    try:
        failpoint("retention.claim.before")
        with stage(STEP_SECONDS, "claim"):
            page, last = await _list_next(leader, erasure, after, patient=patient)
            if not page:
                return replace(NOTHING, last=last), None
            batch, spared = await _claim(leader, erasure, page, list_in_progress)
            if spared is not None:
                await leader.ledger.write("erasure_spared", spared, actor=ACTOR)
                batch = replace(NOTHING, last=after or _START, has_spared=True)
        failpoint("retention.claim.after")
        return batch, None
    except HoldUnreadable as error:
        count_failure("hold_unreadable")
        return NOTHING, error.detail


async def _list_next(
    leader: Leader, erasure: Erasure, after: Position | None, *, patient: bool
) -> tuple[list[PendingDeletion], Position | None]:
    """Return the next marks, and the last position that was read; wait for segments that an eraser
    before this one has left leased."""
    limit, defer = leader.settings.retention_batch_inferences, segment_claims.defer
    until = time.monotonic() + segment_claims.LEASE_SECONDS
    while True:
        async with leader.engine.connect() as connection:
            most = 2 * limit if patient else limit
            page = await list_pending(connection, erasure.id, after=after, limit=most)
            if not page:
                return [], None
            rest = page
            if patient:
                rest = await defer(connection, rest, patient=True)
            if len(rest) >= limit:
                rest = await defer(connection, rest[:limit], patient=False)
            left = await segment_claims.find_lease_end(connection, rest, eraser=leader.id)
        if left <= 0 or time.monotonic() > until:
            return rest, rest[-1].position if rest else after or _START
        await leader.check.confirm_step()
        await asyncio.sleep(min(left, _LOOK_SECONDS))


async def _claim(
    leader: Leader,
    erasure: Erasure,
    page: Sequence[PendingDeletion],
    list_in_progress: Callable[[], Set[Identity]],
) -> tuple[Batch, dict[str, Any] | None]:
    async with leader.engine.begin() as connection:
        if erasure.cause == "erased_again":
            await object_claims.wait_for_edits(connection, page)
        # before the erasure's row is locked, for which the rows of the batch before wait
        await fence_exclusive(connection)
        if not await progress.advance_erasure(connection, erasure.id, "marking"):
            return NOTHING, None
        spared = await find_spared(
            connection,
            page,
            since=erasure.in_force_at,
            in_ledger=erasure.cause in IN_LEDGER,
            in_progress=list_in_progress(),
        )
        if spared is not None:
            return NOTHING, spared
        await progress.begin_deleting(connection, erasure.id)
        await object_claims.record_claims(connection, erasure.id, page)
        doomed = await object_claims.claim_objects(connection, page)
        moves = await rows.reserve_keys(connection, page, leader.blobs.buckets.default)
        segments, busy = await segment_claims.claim_segments(
            connection, page, doomed, eraser=leader.id
        )
    leader.lease(segments)
    return Batch(page, doomed, page[-1].position, moves=moves, segments=segments, busy=busy), None
