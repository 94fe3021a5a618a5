"""The accounts of producers over HTTP: answers have the fields that the document describes."""

from datetime import UTC, datetime
from typing import Any, get_args

import httpx
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.schemas.accounting import Accounting, ProducerAccount
from inference_store.index import accounting
from inference_store.index.accounting import LogEnd, Outcome, PartitionId, ReceivedReport
from inference_store.inference.producer_reports import ProducerReport

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
MOST = 2**63 - 1


def _make_report(producer: str, reporter: str, **counts: Any) -> ReceivedReport:
    times: dict[str, Any] = {"booted_at": AT, "reported_at": AT}
    report = ProducerReport(producer=producer, reporter=reporter, number=1, **times, **counts)
    return ReceivedReport(report, PartitionId("default", "reports", 0, 0), offset=0)


async def test_shows_producer_with_its_reports(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    own = _make_report("p", "p", seen=9, sampled_out=1, dropped={"no_budget": 2}, queued=2,
                       spooled=1, published=4, events=8, highest_sequence=8)  # fmt: skip
    finder = _make_report("p", "q", seen=1, published=1, events=2, highest_sequence=8, final=True)
    events = PartitionId("default", "events", 0, 0)
    async with engine.begin() as connection:
        await accounting.open_partition(connection, events, first=0, began="first")
        await accounting.add_sequences(connection, events, {"p": [0, 1, 2, 3, 5, 7]})
        await accounting.store_reports(connection, [own, finder])
    answer = (await client.get("/v1/accounting")).json()
    _check_fields(Accounting, answer)
    [producer] = answer["producers"]
    assert (producer["seen"], producer["sampled_out"], producer["dropped"]) == (
        9,
        1,
        {"no_budget": 2},
    )
    assert (producer["queued"], producer["unsettled"]) == (0, 1)
    assert (producer["published"], producer["events"], producer["closes"]) == (5, 10, True)
    assert (producer["state"], producer["given"], producer["highest"]) == ("dead", 8, 7)
    assert (producer["arrived"], producer["missing"]) == (5, 2)
    assert producer["holes"] == {"dropped": 2, "waiting": 0, "unknown_tail": 1, "unexplained": 0}
    assert [report["reporter"] for report in producer["reports"]] == ["p", "q"]
    assert producer["reports"][0]["booted_at"] == "2026-11-01T12:00:00.000000Z"
    assert answer["former_producers"] is None


async def test_answers_with_very_large_sums(client: httpx.AsyncClient, engine: AsyncEngine) -> None:
    huge = {"seen": MOST, "queued": MOST, "published": MOST, "highest_sequence": MOST}
    reports = [_make_report("p", who, dropped={"left": MOST}, **huge) for who in ("p", "q")]
    async with engine.begin() as connection:
        await accounting.store_reports(connection, reports)
    [producer] = (await client.get("/v1/accounting")).json()["producers"]
    assert (producer["published"], producer["dropped"], producer["closes"]) == (
        MOST,
        {"left": MOST},
        False,
    )


async def test_shows_former_producers_as_sums(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [_make_report("p", "p", seen=3, published=3, highest_sequence=3)]
        )
        await connection.execute(text("UPDATE producer_report SET heard_at = '2026-01-01Z'"))
        assert await accounting.fold_producers(connection, limit=10) == 1
    answer = (await client.get("/v1/accounting")).json()
    _check_fields(Accounting, answer)
    assert answer["producers"] == []
    former = answer["former_producers"]
    assert (former["producers"], former["seen"], former["given"]) == (1, 3, 3)
    assert former["heard_until"] == "2026-01-01T00:00:00.000000Z"


def test_example_in_the_document_is_complete() -> None:
    config = ProducerAccount.model_config["json_schema_extra"]
    assert isinstance(config, dict)
    examples: Any = config["examples"]
    for example in examples:
        _check_fields(ProducerAccount, example)
        ProducerAccount.model_validate(example)


def _check_fields(model: type[BaseModel], answer: dict[str, Any]) -> None:
    """Check that an answer has exactly the fields of its model, at every depth."""
    model.model_validate(answer)
    assert set(answer) == set(model.model_fields)
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel) and answer[name]:
                values = answer[name] if isinstance(answer[name], list) else [answer[name]]
                for value in values:
                    _check_fields(kind, value)


async def test_shows_waiting_messages_of_each_partition(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    old, new, unseen = (PartitionId("default", "events", epoch, 0) for epoch in (0, 1, 2))
    async with engine.begin() as connection:
        for partition in (old, new):
            await accounting.open_partition(connection, partition, first=3, began="first")
        for end in (9, 10):
            await accounting.store_ends(
                connection, {partition: LogEnd(end, AT) for partition in (old, new, unseen)}
            )
    first, second = (await client.get("/v1/accounting")).json()["partitions"]
    names = ("waiting", "oldest_waiting_at", "lag_measured_at")
    assert [first[name] for name in names] == [None, None, None]
    assert [second[name] for name in names[:2]] == [7, "2026-11-01T12:00:00.000000Z"]
    assert datetime.fromisoformat(second["lag_measured_at"]).tzinfo is not None
    async with engine.begin() as connection:
        lost = {Outcome.LOST: 8}
        await accounting.move_offsets(connection, new, lo=3, hi=11, outcomes=lost, last=None)
    [_, second] = (await client.get("/v1/accounting")).json()["partitions"]
    assert [second[name] for name in names[:2]] == [0, None]
