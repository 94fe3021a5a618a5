"""The books."""

from collections.abc import Mapping
from typing import Any

from inference_store.access.rights import Right
from inference_store.api.access import Over, needs
from inference_store.api.answer import Answer, to_dict
from inference_store.api.dependencies import Reading
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.books import Accounting
from inference_store.index import accounting

router = make_router("dead letters and books")
# Sums of what anyone may have reported: JSON's integers end here.
_LARGEST = 2**63 - 1


@router.get(
    "/accounting",
    response_model=Accounting,
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.EVERYTHING),
    summary="Read the books",
)
async def get_accounting(connection: Reading) -> Answer:
    """What became of every offset of every Kafka partition, and of what producers captured."""
    accounts = await accounting.list_accounts(connection)
    producers = await accounting.list_producers(connection)
    former = await accounting.find_former_producers(connection)
    return Answer(
        {
            "closes": all(account.closes for account in accounts),
            "partitions": [_format_account(account) for account in accounts],
            "producers": [_format_producer(each) for each in producers],
            "former_producers": None if former is None else to_dict(former),
        }
    )


def _format_account(account: accounting.Account) -> dict[str, Any]:
    return {
        **account.partition_id.values,
        **to_dict(account, "partition_id", "counts", "lost"),
        **{outcome.value: number for outcome, number in account.counts.items()},
        "closes": account.closes,
        "lost_offsets": [{"lo": lo, "hi": hi} for lo, hi in account.lost],
    }


def _format_producer(account: accounting.ProducerAccount) -> dict[str, Any]:
    return {
        **to_dict(account, "arrived_reported", "reports"),
        **_bound_counts(to_dict(account.totals, "spooled", "highest_sequence")),
        "dropped": _bound_counts(account.totals.dropped),
        "given": account.given,
        "missing": account.missing,
        "state": account.state,
        "heard_at": account.heard_at,
        "holes": to_dict(account.gaps),
        "reports": [_format_report(kept) for kept in account.reports],
    }


def _format_report(kept: accounting.StoredReport) -> dict[str, Any]:
    report = kept.report
    return {
        **to_dict(report, "producer"),
        "dropped": dict(report.dropped),
        "closes": report.closes,
        "heard_at": kept.heard_at,
    }


def _bound_counts(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: min(count, _LARGEST) if isinstance(count, int) else count
        for name, count in counts.items()
    }
