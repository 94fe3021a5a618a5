"""The offset accounting: what became of every offset, and what producers say of themselves."""

from datetime import datetime
from typing import Any

from pydantic import ConfigDict

from inference_store.access.rights import Right
from inference_store.index import accounting
from inference_store.index.accounting.producers import FormerProducers, State

from .access import Needs, Over
from .answer import Answer, Shown
from .dependencies import Reading
from .routing import Router


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


_PRODUCER = "0199f2c4-8b1e-7a52-9d1c-2f6f0a4be001"
# Killed with two captures in memory.
_DEAD: dict[str, Any] = {
    "producer": _PRODUCER,
    "state": "dead",
    "heard_at": "2026-11-01T12:01:00.123456Z",
    "given": 100,
    "arrived": 95,
    "missing": 5,
    "reason": "3 dropped or refused, and counted (no_budget 3);"
    " 2 lost in memory when the producer died",
    "closes": False,
    "reports": [
        {
            "reporter": _PRODUCER,
            "number": 7,
            "booted_at": "2026-11-01T12:00:00.000000Z",
            "reported_at": "2026-11-01T12:01:00.000000Z",
            "heard_at": "2026-11-01T12:01:00.123456Z",
            "seen": 120,
            "sampled_out": 20,
            "dropped": {"no_budget": 3},
            "queued": 2,
            "spooled": 0,
            "published": 95,
            "events": 190,
            "highest_sequence": 100,
            "final": False,
            "closes": True,
        }
    ],
}


class ProducerAccount(Shown):
    """How many of the sequence numbers that a producer gave have not arrived, and why."""

    model_config = ConfigDict(json_schema_extra={"examples": [_DEAD]})

    producer: str
    state: State
    heard_at: datetime | None
    """When a report of it was last read; null: it has never reported."""
    given: int
    """The highest sequence number known: reported, or arrived."""
    arrived: int
    missing: int
    """`given - arrived`."""
    reason: str | None
    """Why they are missing, and what else its reports say was lost; null: nothing is missing."""
    closes: bool
    """Its reports add up and, unless it runs, explain all that did not arrive."""
    reports: list[ProducerReport]


class Accounting(Shown):
    """The books."""

    closes: bool
    """Those of every partition and of every listed producer close."""
    partitions: list[accounting.Account]
    producers: list[ProducerAccount]
    """At most 1,000: those of which most did not arrive."""
    former_producers: FormerProducers | None
    """Null: none was ever heard that long ago."""


router = Router("dead letters and books")


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
            partitions=accounts,
            producers=[_show_producer(producer) for producer in producers],
            former_producers=former,
        )
    )


def _show_producer(account: accounting.ProducerAccount) -> ProducerAccount:
    reports = [
        ProducerReport.show(stored.report, heard_at=stored.heard_at) for stored in account.reports
    ]
    return ProducerAccount.show(account, reports=reports)
