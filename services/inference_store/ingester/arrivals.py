"""What may not be stored as it arrives: seen before, erased before, expired, or being deleted.

The order decides the state: a redelivery is a duplicate even when it has expired meanwhile,
what was erased is not brought back, and only what was never here can expire on arrival.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.store import inferences
from inference_store.store.books import Outcome
from inference_store.store.indexing import Indexable
from inference_store.store.records import Trouble
from inference_store.store.retention import erasures, marks, policies, spans, tombstones

from .batch import MissingBlob, Read


@dataclass(slots=True)
class Arrivals:
    """A batch, sorted out."""

    fresh: list[Read] = field(default_factory=list)
    dead: list[tuple[Read, Trouble]] = field(default_factory=list)
    missing: list[tuple[Read, MissingBlob]] = field(default_factory=list)
    settled: list[tuple[Read, Outcome]] = field(default_factory=list)
    # fresh ones whose input has outlived its policy already
    input_expired: list[Indexable] = field(default_factory=list)
    # a span of time has been dropped, or is about to be: the catalogue is to be read again
    spans_gone: bool = False


async def sort_out(connection: AsyncConnection, reads: Sequence[Read]) -> Arrivals:
    """Sort a batch by what may become of each; queues for erasure what must not stay."""
    found = Arrivals()
    candidates: list[tuple[Read, Indexable]] = []
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
    connection: AsyncConnection, candidates: Sequence[tuple[Read, Indexable]], found: Arrivals
) -> None:
    # A statement of its own, before all that is looked up: see store/retention/marks.py.
    await marks.gate_shared(connection)
    shared = {key for _, item in candidates for key in item.shared_keys}
    claimed = await marks.claimed(connection, shared) if shared else set()
    identities = [(*item.identity, item.event.received_at) for _, item in candidates]
    erased = await tombstones.find(connection, identities)
    closed = await spans.closed(connection, {item.event.received_at for _, item in candidates})
    found.spans_gone = bool(closed)
    rules = await policies.by_model(connection, {item.registration.model for _, item in candidates})
    now = datetime.now(UTC)
    ages = {model: policies.cutoffs(policy, now) for model, policy in rules.items()}
    waiting = [item.identity for read, item in candidates if isinstance(read.result, MissingBlob)]
    stored = await inferences.stored(connection, waiting) if waiting else set()
    expired: list[tuple[Read, Indexable]] = []
    again: list[Indexable] = []
    seen = set()
    for read, item in candidates:
        cutoffs = ages.get(item.registration.model)
        age = cutoffs.expired(item.event.received_at) if cutoffs is not None else None
        if item.identity in seen:
            found.settled.append((read, Outcome.DUPLICATE))
        elif item.identity in erased:
            again.append(item)
            found.settled.append((read, Outcome.ERASED_AGAIN))
        elif claimed.intersection(item.shared_keys):
            found.missing.append((read, _being_deleted(item, claimed)))
        elif age == "inference":
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
            if age == "input" and item.event.data is not None:
                found.input_expired.append(item)
        seen.add(item.identity)
    await _enqueue(connection, again, "erased_again")
    await _expire(connection, expired, found)


async def _expire(
    connection: AsyncConnection, expired: Sequence[tuple[Read, Indexable]], found: Arrivals
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
    key = next(key for key in item.shared_keys if key in claimed)
    return MissingBlob(key, item.event.model_id, item.event.inference_id)
