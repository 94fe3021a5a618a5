"""The offset accounting."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from inference_store.access.rights import Right
from inference_store.api.access import Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.accounting import (
    Account,
    Accounting,
    FormerProducers,
    Lost,
    ProducerAccount,
    Report,
)
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
        Accounting(
            closes=all(account.closes for account in accounts)
            and all(producer.closes for producer in producers),
            partitions=[_show_account(account) for account in accounts],
            producers=[_show_producer(producer) for producer in producers],
            former_producers=None if former is None else FormerProducers.show(former),
        )
    )


def _show_account(account: accounting.Account) -> Account:
    return Account.show(
        account,
        **account.partition_id.values,
        **{outcome.value: number for outcome, number in account.counts.items()},
        lost_offsets=[Lost(lo=lo, hi=hi) for lo, hi in account.lost],
    )


def _show_producer(account: accounting.ProducerAccount) -> ProducerAccount:
    totals = account.totals
    counts = _bound_counts(asdict(totals)) | {"dropped": _bound_counts(totals.dropped)}
    del counts["add_up"]
    reports = [Report.show(stored.report, heard_at=stored.heard_at) for stored in account.reports]
    return ProducerAccount.show(account, **counts, holes=account.gaps, reports=reports)


def _bound_counts(counts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: min(count, _LARGEST) if isinstance(count, int) else count
        for name, count in counts.items()
    }
