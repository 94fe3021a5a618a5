"""The offset accounting: what became of every offset, and what producers say of themselves."""

from datetime import datetime

from pydantic import Field

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


class ProducerAccount(Shown):
    """How many of the sequence numbers that a producer gave have not arrived, and why."""

    producer: str
    state: State
    heard_at: datetime | None
    """When a report of it was last read; null if it has never reported."""
    given: int
    """The highest sequence number known: reported, or arrived."""
    arrived: int
    missing: int
    """`given - arrived`."""
    reason: str | None = Field(examples=["3 dropped or refused, and counted (no_budget 3)"])
    """Why they are missing, and what else was lost according to its reports; null if nothing is
    missing."""
    closes: bool
    """Its reports add up and, unless it runs, explain all that did not arrive."""
    reports: list[ProducerReport]


class Accounting(Shown):
    """The books."""

    closes: bool
    """Whether the books of every partition and of every listed producer close."""
    partitions: list[accounting.Account]
    producers: list[ProducerAccount]
    """At most 1,000: those with the most missing events."""
    former_producers: FormerProducers | None
    """Null if there are none."""


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
            producers=[
                ProducerAccount.show(
                    producer,
                    reports=[
                        ProducerReport.show(stored.report, heard_at=stored.heard_at)
                        for stored in producer.reports
                    ],
                )
                for producer in producers
            ],
            former_producers=former,
        )
    )
