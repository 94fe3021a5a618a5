"""The offset accounting: what became of every offset, and what producers say of themselves."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pydantic import Field

from inference_store.access.rights import Right
from inference_store.index import accounting
from inference_store.index.accounting.producers import FormerProducers, SequenceGaps, State

from .access import Needs, Over
from .answer import Answer, Shown
from .dead_letters import ShownPlace
from .dependencies import Reading
from .routing import Router


class LostOffsets(Shown):
    """Offsets that the log dropped before they were read: from `lo`, below `hi`."""

    lo: int
    hi: int


class Account(ShownPlace):
    """The books of one partition: `next - first` is the sum of what became of the offsets."""

    first: int
    next: int
    began: str
    stored: int
    duplicate: int
    dead: int
    dead_open: int
    dead_discarded: int
    parked: int
    expired: int
    erased_again: int
    lost: int
    not_delivered: int
    closes: bool
    """Every offset read has exactly one state."""
    lost_offsets: list[LostOffsets]
    updated_at: datetime
    waiting: int | None
    """Offsets from `next` to the end of the log, as it was at `lag_measured_at`; null: no ingester
    has measured it, or the topic was created again."""
    oldest_waiting_at: datetime | None
    """When the oldest of them came to Kafka, or earlier; null: none waits, or it is not known."""
    lag_measured_at: datetime | None
    """When an ingester last saw the end of the log; one that runs looks every 15 seconds."""


class ProducerReport(Shown):
    """The newest report of one reporter: the producer itself, or who found its spool.

    Counts are exchanges, and totals; `seen = sampled_out + all dropped + queued + published`.
    """

    reporter: str
    number: int
    booted_at: datetime
    reported_at: datetime
    heard_at: datetime
    seen: int
    sampled_out: int
    dropped: dict[str, int]
    queued: int
    spooled: int
    published: int
    events: int
    highest_sequence: int
    final: bool
    closes: bool


class ProducerAccount(Shown):
    """What a producer reports, in exchanges, and what arrived of its sequence numbers.

    `seen = sampled_out + all dropped + queued + unsettled + published`, and
    `given = arrived + all holes`.
    """

    producer: str
    state: State
    heard_at: datetime | None
    """When a report of it was last read; null: it has never reported."""
    seen: int
    sampled_out: int
    dropped: dict[str, int] = Field(examples=[{"no_budget": 3}])
    """By reason."""
    queued: int
    unsettled: int
    """Queued when a process died, and not in the spool that the next one found."""
    published: int
    events: int
    closes: bool
    """Its reports add up and, unless it runs, explain all that did not arrive."""
    given: int
    """The highest sequence number known: reported, or arrived."""
    highest: int
    """The highest that arrived."""
    arrived: int
    missing: int
    """Numbers up to `highest` that did not arrive."""
    holes: SequenceGaps
    reports: list[ProducerReport]


class Accounting(Shown):
    """The books."""

    closes: bool
    """Those of every partition and of every listed producer close."""
    partitions: list[Account]
    producers: list[ProducerAccount]
    """At most 1,000: those of which most did not arrive."""
    former_producers: FormerProducers | None
    """Null: none was ever heard that long ago."""


router = Router("dead letters and books")
# Sums of what anyone may have reported: JSON's integers end here.
_LARGEST = 2**63 - 1


@router.add("GET /accounting", Needs(Right.READ, Over.EVERYTHING), "Read the books")
async def get_accounting(connection: Reading) -> Answer[Accounting]:
    """What became of every offset of every Kafka partition, and of what producers captured."""
    accounts = await accounting.list_accounts(connection)
    producers = await accounting.list_producers(connection)
    former = await accounting.find_former_producers(connection)
    return Answer(
        Accounting(
            closes=all(account.closes for account in accounts)
            and all(producer.closes for producer in producers),
            partitions=[_show_account(account) for account in accounts],
            producers=[_show_producer(producer) for producer in producers],
            former_producers=former,
        )
    )


def _show_account(account: accounting.Account) -> Account:
    return Account.show(
        account,
        **account.partition_id.values,
        **{outcome.value: number for outcome, number in account.counts.items()},
        lost_offsets=[LostOffsets(lo=lo, hi=hi) for lo, hi in account.lost],
    )


def _show_producer(account: accounting.ProducerAccount) -> ProducerAccount:
    totals = account.totals
    counts = _bound_counts(asdict(totals)) | {"dropped": _bound_counts(totals.dropped)}
    del counts["add_up"]
    reports = [
        ProducerReport.show(stored.report, heard_at=stored.heard_at) for stored in account.reports
    ]
    return ProducerAccount.show(account, **counts, holes=account.gaps, reports=reports)


def _bound_counts(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: min(count, _LARGEST) if isinstance(count, int) else count
        for name, count in counts.items()
    }
