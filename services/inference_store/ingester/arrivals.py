"""Finds the events that may not be stored: duplicates, erased, expired, or being deleted.

The order decides the state: a redelivery is a duplicate even if it has expired meanwhile, an erased
inference is not restored, and only an inference that was never stored can expire on arrival.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import holds, pending_deletions, policies, rows
from inference_store.erasure.holds import Hold
from inference_store.erasure.locks import fence_shared
from inference_store.erasure.policies import EffectivePolicy, ErasureScope
from inference_store.erasure.progress import Cause
from inference_store.index import sidecars
from inference_store.index.accounting import Outcome
from inference_store.index.unsettled import Rejection
from inference_store.index.writing import Indexable
from inference_store.ingester.batch import MissingBlob, ReadRecord
from inference_store.query.deadline import OutOfTime
from inference_store.query.unstored import Truths, evaluate
from inference_store.replay.items import find_orphaned


@dataclass(slots=True)
class Arrivals:
    """The events of a batch, by what happens to each."""

    fresh: list[ReadRecord] = field(default_factory=list)
    dead: list[tuple[ReadRecord, Rejection]] = field(default_factory=list)
    missing: list[tuple[ReadRecord, MissingBlob]] = field(default_factory=list)
    settled: list[tuple[ReadRecord, Outcome]] = field(default_factory=list)
    # fresh ones with a part that has outlived its policy already
    part_expired: list[tuple[Indexable, ErasureScope]] = field(default_factory=list)
    # a span of time has been dropped, or is about to be: the catalogue must be read again
    spans_gone: bool = False


async def sort_out(connection: AsyncConnection, reads: Sequence[ReadRecord]) -> Arrivals:
    """Decide what happens to each event of a batch; queue for erasure those that must not stay."""
    # A statement of its own, before anything is looked up: see erasure/pending_deletions.py.
    # Also if there are only dead letters: after the commit an eraser sees the objects they name.
    await fence_shared(connection)
    arrivals = Arrivals()
    candidates: list[tuple[ReadRecord, Indexable]] = []
    for read in reads:
        if isinstance(read.result, Rejection):
            arrivals.dead.append((read, read.result))
        elif isinstance(read.result, Outcome):
            arrivals.settled.append((read, read.result))
        elif isinstance(read.result, MissingBlob):
            # Its blob may be missing because the inference was erased: look it up anyway.
            if read.result.item is None:
                arrivals.missing.append((read, read.result))
            else:
                candidates.append((read, read.result.item))
        else:
            candidates.append((read, read.result))
    if candidates:
        await _sort_candidates(connection, candidates, arrivals)
    return arrivals


async def _sort_candidates(
    connection: AsyncConnection,
    candidates: Sequence[tuple[ReadRecord, Indexable]],
    arrivals: Arrivals,
) -> None:
    shared = {key for _, item in candidates for key in item.shared_keys}
    claimed = (
        await pending_deletions.find_claimed(connection, shared, objects=False) if shared else set()
    )
    # an orphan may belong to a capture whose event arrives late
    claimed |= await pending_deletions.find_claimed_objects(
        connection, (key for _, item in candidates for key in _keys(item))
    )
    erased = await _find_erased(connection, [item for _, item in candidates])
    closed = await rows.find_closed(connection, {item.event.received_at for _, item in candidates})
    arrivals.spans_gone = bool(closed)
    models = {item.registration.model for _, item in candidates}
    chains = await policies.find_effective_policies(connection, models)
    in_force = await holds.list_in_force(connection, models) if chains or erased else []
    now = datetime.now(UTC)
    waiting = [item.identity for read, item in candidates if isinstance(read.result, MissingBlob)]
    stored = await sidecars.stored(connection, waiting) if waiting else set()
    erased_at = await pending_deletions.find_times(connection, erased.intersection(waiting))
    expired: list[tuple[ReadRecord, Indexable]] = []
    again: list[Indexable] = []
    identities_in_batch = set()
    due = await _find_expired(connection, candidates, chains, now)
    doubtful = [n for n, (_, item) in enumerate(candidates) if due[n] or item.identity in erased]
    keeping = await _find_holds(connection, in_force, [candidates[n] for n in doubtful])
    holds_by_place = dict(zip(doubtful, keeping, strict=True))
    for n, (read, item) in enumerate(candidates):
        gone = () if holds_by_place.get(n) else due[n]
        if item.identity in identities_in_batch:
            arrivals.settled.append((read, Outcome.DUPLICATE))
        elif item.identity in erased:
            # it stays erased; but if its objects exist again, a hold may keep them as evidence
            if not _in_doubt(holds_by_place[n], erased_at.get(item.identity)):
                again.append(item)
            arrivals.settled.append((read, Outcome.ERASED_AGAIN))
        elif claimed.intersection(_keys(item)):
            key = min(claimed.intersection(_keys(item)))
            arrivals.missing.append((read, _wait_for(key, item)))
        elif "inference" in gone:
            expired.append((read, item))
        elif isinstance(read.result, MissingBlob):
            if item.identity in stored:
                arrivals.settled.append((read, Outcome.DUPLICATE))
            else:
                arrivals.missing.append((read, read.result))
                continue
        elif item.event.received_at in closed:
            detail = f"the span of time of {item.event.received_at} is being dropped"
            arrivals.missing.append((read, _wait_for("", item, detail)))
        else:
            arrivals.fresh.append(read)
            keys = {"input": item.event.data, "response": item.event.response}
            arrivals.part_expired += [(item, part) for part in gone if keys[part] is not None]
        identities_in_batch.add(item.identity)
    await _enqueue(connection, again, "erased_again")
    await _expire(connection, expired, arrivals)


async def _find_erased(
    connection: AsyncConnection, items: Sequence[Indexable]
) -> set[sidecars.Identity]:
    """Return those that were erased, are being erased, or repeat what a request erased."""
    erased = await pending_deletions.find_erased(connection, (item.identity for item in items))
    orphaned = await find_orphaned(connection, (item.event.inference_id for item in items))
    return erased | {item.identity for item in items if item.event.inference_id in orphaned}


def _keys(item: Indexable) -> set[str]:
    """Return the keys of an inference's blobs, and of the objects that hold them."""
    keys = {key for key in item.storage_keys if key is not None} | {*item.shared_keys}
    return keys | {key.partition("#")[0] for key in keys}


def _wait_for(key: str, item: Indexable, detail: str = "") -> MissingBlob:
    return MissingBlob(key, item.event.model_id, item.event.inference_id, detail)


async def _find_expired(
    connection: AsyncConnection,
    candidates: Sequence[tuple[ReadRecord, Indexable]],
    chains: Mapping[int, EffectivePolicy],
    now: datetime,
) -> list[tuple[ErasureScope, ...]]:
    """Return the parts of each that have expired.

    While a blob is missing its facts are not known: then only parts that expire whatever the facts
    are count. Nothing has expired by filters that cannot be evaluated.
    """
    filters = {saved: of for chain in chains.values() for saved, of in chain.filters.items()}
    latest = {model: chain.find_latest(now) for model, chain in chains.items()}

    def is_young(item: Indexable) -> bool:
        at = latest.get(item.registration.model)
        return at is None or item.event.received_at >= at

    whole = [item for read, item in candidates if not isinstance(read.result, MissingBlob)]
    old = [item for item in whole if not is_young(item)]
    found: Sequence[Truths | None] = [None] * len(old)
    with suppress(OutOfTime):
        found = await evaluate(connection, old, [*filters.values()], certain=True)
    answers = iter(found)
    parts: list[tuple[ErasureScope, ...]] = []
    for read, item in candidates:
        gone: tuple[ErasureScope, ...] = ()
        if not is_young(item):
            chain, at = chains[item.registration.model], item.event.received_at
            if isinstance(read.result, MissingBlob):
                gone = chain.find_certain_cutoffs(now).find_expired(at)
            elif (truths := next(answers)) is not None:
                matching = {saved for saved, truth in zip(filters, truths, strict=True) if truth}
                gone = chain.find_cutoffs(matching, now).find_expired(at)
        parts.append(gone)
    return parts


def _in_doubt(in_force: Sequence[Hold], erased_at: datetime | None) -> Sequence[Hold]:
    """Return the holds that may keep an erased inference that arrives again.

    `erased_at`: when it was erased, if a blob and so its facts are missing. Then only later holds
    count: an earlier one did not keep it. Otherwise objects that a producer writes while an eraser
    deletes them would stay, and no row would name them.
    """
    if erased_at is None:
        return in_force
    return [hold for hold in in_force if hold.in_force_at > erased_at]


async def _find_holds(
    connection: AsyncConnection,
    in_force: Sequence[Hold],
    candidates: Sequence[tuple[ReadRecord, Indexable]],
) -> list[Sequence[Hold]]:
    """Return the holds that keep each. NULL protects, and so do a missing blob and a filter that
    cannot be evaluated."""
    known = [item for read, item in candidates if not isinstance(read.result, MissingBlob)]
    answers = iter(await holds.judge(connection, in_force, known))
    keeping: list[Sequence[Hold]] = []
    for read, item in candidates:
        protects = {} if isinstance(read.result, MissingBlob) else next(answers)
        of_model = (hold for hold in in_force if hold.model in (None, item.registration.model))
        keeping.append([hold for hold in of_model if protects.get(hold.id, True)])
    return keeping


async def _expire(
    connection: AsyncConnection, expired: Sequence[tuple[ReadRecord, Indexable]], arrivals: Arrivals
) -> None:
    """Queue expired events for erasure; one that is stored already is a duplicate, which the sweep
    deletes."""
    stored = await sidecars.stored(connection, [item.identity for _, item in expired])
    gone = []
    for read, item in expired:
        is_stored = item.identity in stored
        arrivals.settled.append((read, Outcome.DUPLICATE if is_stored else Outcome.EXPIRED))
        if not is_stored:
            gone.append(item)
    await _enqueue(connection, gone, "expired_arrival")


async def _enqueue(connection: AsyncConnection, items: Sequence[Indexable], cause: Cause) -> None:
    arrivals = [(*item.identity, "inference", *item.storage_keys) for item in items]
    if arrivals:
        await pending_deletions.enqueue_arrivals(connection, arrivals, cause=cause)
