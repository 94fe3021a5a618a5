"""The books."""

from collections.abc import Mapping
from typing import Any

from inference_store.access.rights import Right
from inference_store.api.access import Over, needs
from inference_store.api.answer import Answer, named
from inference_store.api.dependencies import Reading
from inference_store.api.problems import refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.books import Accounting
from inference_store.index import books

router = make_router("dead letters and books")
# Sums of what anyone may have reported: JSON's integers end here.
_LARGEST = 2**63 - 1


@router.get(
    "/accounting",
    response_model=Accounting,
    responses=refusals(),
    openapi_extra=needs(Right.READ, Over.EVERYTHING),
    summary="Read the books",
)
async def get_accounting(connection: Reading) -> Answer:
    """What became of every offset of every Kafka partition, and of what producers captured."""
    accounts = await books.accounts(connection)
    producers = await books.producers(connection)
    former = await books.former(connection)
    return Answer(
        {
            "closes": all(account.closes for account in accounts),
            "partitions": [_account(account) for account in accounts],
            "producers": [_producer(each) for each in producers],
            "former_producers": None if former is None else named(former),
        }
    )


def _account(account: books.Account) -> dict[str, Any]:
    return {
        **account.place.values,
        **named(account, "place", "counts", "lost"),
        **{outcome.value: number for outcome, number in account.counts.items()},
        "closes": account.closes,
        "lost_offsets": [{"lo": lo, "hi": hi} for lo, hi in account.lost],
    }


def _producer(account: books.ProducerAccount) -> dict[str, Any]:
    return {
        **named(account, "arrived_reported", "reports"),
        **_bounded(named(account.told, "spooled", "highest_sequence")),
        "dropped": _bounded(account.told.dropped),
        "given": account.given,
        "missing": account.missing,
        "state": account.state,
        "heard_at": account.heard_at,
        "holes": named(account.holes),
        "reports": [_report(kept) for kept in account.reports],
    }


def _report(kept: books.KeptReport) -> dict[str, Any]:
    report = kept.report
    return {
        **named(report, "producer"),
        "dropped": dict(report.dropped),
        "closes": report.closes,
        "heard_at": kept.heard_at,
    }


def _bounded(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: min(count, _LARGEST) if isinstance(count, int) else count
        for name, count in counts.items()
    }
