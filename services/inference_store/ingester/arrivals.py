"""What may not be stored as it arrives: seen before, erased before, expired, or being deleted.

The order decides the state: a redelivery is a duplicate even when it has expired meanwhile,
what was erased is not brought back, and only what was never here can expire on arrival.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.erasure import erasures, holds, policies
from inference_store.erasure.holds import Hold
from inference_store.erasure.mark import marks, tombstones
from inference_store.erasure.policies import Chain, Scope
from inference_store.erasure.select import spans
from inference_store.index import inferences
from inference_store.index.accounting import Outcome
from inference_store.index.records import Trouble
from inference_store.index.writing import Indexable
from inference_store.inference.errors import StoreError
from inference_store.query.facts import build_facts

from .batch import MissingBlob, ReadRecord


@dataclass(slots=True)
class Arrivals:
    """A batch, sorted out."""

    fresh: list[ReadRecord] = field(default_factory=list)
    dead: list[tuple[ReadRecord, Trouble]] = field(default_factory=list)
    missing: list[tuple[ReadRecord, MissingBlob]] = field(default_factory=list)
    settled: list[tuple[ReadRecord, Outcome]] = field(default_factory=list)
    # fresh ones of which a part has outlived its policy already
    part_expired: list[tuple[Indexable, Scope]] = field(default_factory=list)
    # a span of time has been dropped, or is about to be: the catalogue is to be read again
    spans_gone: bool = False


async def sort_out(connection: AsyncConnection, reads: Sequence[ReadRecord]) -> Arrivals:
    """Sort a batch by what may become of each; queues for erasure what must not stay."""
    # A statement of its own, before all that is looked up: see erasure/mark/marks.py. Of dead
    # letters alone too: from its commit on whoever erases objects sees what they name.
    await marks.gate_shared(connection)
    found = Arrivals()
    candidates: list[tuple[ReadRecord, Indexable]] = []
    for read in reads:
        if isinstance(read.result, Trouble):
            found.dead.append((read, read.result))
        elif isinstance(read.result, MissingBlob):
            # Its blob may be missing because the inference was erased: looked up all the same.
            if read.result.item is None:
                found.missing.append((read, read.result))
            else:
                candidates.append((read, read.result.item))
        else:
            candidates.append((read, read.result))
    if candidates:
        await _sort_candidates(connection, candidates, found)
    return found


async def _sort_candidates(
    connection: AsyncConnection, candidates: Sequence[tuple[ReadRecord, Indexable]], found: Arrivals
) -> None:
    shared = {key for _, item in candidates for key in item.shared_keys}
    claimed = await marks.claimed(connection, shared, objects=False) if shared else set()
    # an orphan may be a capture's own, whose event has come after all
    claimed |= await marks.claimed_objects(
        connection, (key for _, item in candidates for key in _keys(item))
    )
    identities = [(*item.identity, item.event.received_at) for _, item in candidates]
    erased = await tombstones.find(connection, identities)
    closed = await spans.closed(connection, {item.event.received_at for _, item in candidates})
    found.spans_gone = bool(closed)
    models = {item.registration.model for _, item in candidates}
    chains = await policies.by_model(connection, models)
    in_force = await holds.in_force(connection, models) if chains or erased else []
    now = datetime.now(UTC)
    waiting = [item.identity for read, item in candidates if isinstance(read.result, MissingBlob)]
    stored = await inferences.stored(connection, waiting) if waiting else set()
    erased_at = await tombstones.times(connection, erased.intersection(waiting))
    expired: list[tuple[ReadRecord, Indexable]] = []
    again: list[Indexable] = []
    seen = set()
    for read, item in candidates:
        gone = _expired(chains.get(item.registration.model), read, item, now)
        if gone and _held(in_force, read, item, now):
            gone = ()
        if item.identity in seen:
            found.settled.append((read, Outcome.DUPLICATE))
        elif item.identity in erased:
            # what was erased stays so; but its objects, should there be any again, are evidence
            if not _held(_in_doubt(in_force, erased_at.get(item.identity)), read, item, now):
                again.append(item)
            found.settled.append((read, Outcome.ERASED_AGAIN))
        elif claimed.intersection(_keys(item)):
            found.missing.append((read, _being_deleted(item, claimed)))
        elif "inference" in gone:
            expired.append((read, item))
        elif isinstance(read.result, MissingBlob):
            if item.identity in stored:
                found.settled.append((read, Outcome.DUPLICATE))
            else:
                found.missing.append((read, read.result))
                continue
        elif item.event.received_at in closed:
            found.missing.append((read, _no_span(item)))
        else:
            found.fresh.append(read)
            found.part_expired += [(item, part) for part in gone if _has(item, part)]
        seen.add(item.identity)
    await _enqueue(connection, again, "erased_again")
    await _expire(connection, expired, found)


def _keys(item: Indexable) -> set[str]:
    """Of every object that it names."""
    return {key for key in item.storage_keys if key is not None} | {*item.shared_keys}


def _expired(
    chain: Chain | None, read: ReadRecord, item: Indexable, now: datetime
) -> tuple[Scope, ...]:
    """What of it has expired. While a blob is missing its facts are not known: only what goes
    whatever they are is decided about."""
    if chain is None:
        return ()
    if isinstance(read.result, MissingBlob):
        cutoffs = chain.certain(now)
    else:
        cutoffs = chain.decide(build_facts(item, indexed_at=now), now, item.all_flags)
    return cutoffs.expired(item.event.received_at)


def _in_doubt(in_force: Sequence[Hold], erased_at: datetime | None) -> Sequence[Hold]:
    """The holds that may keep what comes again. Of what lacks a blob, and so the facts, those alone
    that are younger than its erasure: an older one did not keep it then. Else the rest of what an
    eraser deletes while a producer writes it again would stay, with no row to name it."""
    if erased_at is None:
        return in_force
    return [one for one in in_force if one.in_force_at > erased_at]


def _held(in_force: Sequence[Hold], read: ReadRecord, item: Indexable, now: datetime) -> bool:
    """Whether a hold keeps it. NULL protects: also while a blob is missing, and where a filter
    cannot be evaluated."""
    for one in in_force:
        if one.model not in (None, item.registration.model):
            continue
        if isinstance(read.result, MissingBlob):
            return True
        try:
            if holds.held(one, build_facts(item, indexed_at=now), item.all_flags):
                return True
        except (StoreError, ValueError, KeyError, TypeError):
            return True
    return False


def _has(item: Indexable, part: Scope) -> bool:
    """Whether there is a blob of this part."""
    return (item.event.data if part == "input" else item.event.response) is not None


async def _expire(
    connection: AsyncConnection, expired: Sequence[tuple[ReadRecord, Indexable]], found: Arrivals
) -> None:
    """An expired event that is stored already is a duplicate, for the sweep to delete."""
    stored = await inferences.stored(connection, [item.identity for _, item in expired])
    gone = []
    for read, item in expired:
        known = item.identity in stored
        found.settled.append((read, Outcome.DUPLICATE if known else Outcome.EXPIRED))
        if not known:
            gone.append(item)
    await _enqueue(connection, gone, "expired_arrival")


async def _enqueue(
    connection: AsyncConnection, items: Sequence[Indexable], cause: erasures.Cause
) -> None:
    arrivals = [(*item.identity, "inference", *item.storage_keys) for item in items]
    if arrivals:
        await erasures.enqueue_arrivals(connection, arrivals, cause=cause)


def _no_span(item: Indexable) -> MissingBlob:
    detail = f"the span of time of {item.event.received_at} is being dropped"
    return MissingBlob("", item.event.model_id, item.event.inference_id, detail)


def _being_deleted(item: Indexable, claimed: set[str]) -> MissingBlob:
    key = min(claimed.intersection(_keys(item)))
    return MissingBlob(key, item.event.model_id, item.event.inference_id)
