"""The books of producers over HTTP: what is answered is what the document says."""

from datetime import UTC, datetime
from typing import Any, get_args

import httpx
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.api.schemas.books import Accounting, ProducerAccount
from inference_store.index import accounting
from inference_store.index.accounting import PartitionId, ReceivedReport
from inference_store.inference.producer_reports import ProducerReport

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
MOST = 2**63 - 1


def _read(producer: str, reporter: str, **said: Any) -> ReceivedReport:
    times: dict[str, Any] = {"booted_at": AT, "reported_at": AT}
    report = ProducerReport(producer=producer, reporter=reporter, number=1, **times, **said)
    return ReceivedReport(report, PartitionId("default", "reports", 0, 0), offset=0)


async def test_a_producer_is_shown_with_all_its_reports(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    own = _read("p", "p", seen=9, sampled_out=1, dropped={"no_budget": 2}, queued=2, spooled=1,
                published=4, events=8, highest_sequence=8)  # fmt: skip
    finder = _read("p", "q", seen=1, published=1, events=2, highest_sequence=8, final=True)
    events = PartitionId("default", "events", 0, 0)
    async with engine.begin() as connection:
        await accounting.open_partition(connection, events, first=0, began="first")
        await accounting.add_sequences(connection, events, {"p": [0, 1, 2, 3, 5, 7]})
        await accounting.store_reports(connection, [own, finder])
    answer = (await client.get("/v1/accounting")).json()
    _has_the_fields_of(Accounting, answer)
    [found] = answer["producers"]
    assert (found["seen"], found["sampled_out"], found["dropped"]) == (9, 1, {"no_budget": 2})
    assert (found["queued"], found["unsettled"]) == (0, 1)
    assert (found["published"], found["events"], found["closes"]) == (5, 10, True)
    assert (found["state"], found["given"], found["highest"]) == ("dead", 8, 7)
    assert (found["arrived"], found["missing"]) == (5, 2)
    assert found["holes"] == {"dropped": 2, "waiting": 0, "unknown_tail": 1, "unexplained": 0}
    assert [each["reporter"] for each in found["reports"]] == ["p", "q"]
    assert found["reports"][0]["booted_at"] == "2026-11-01T12:00:00.000000Z"
    assert answer["former_producers"] is None


async def test_sums_that_are_absurd_are_still_an_answer(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    huge = {"seen": MOST, "queued": MOST, "published": MOST, "highest_sequence": MOST}
    some = [_read("p", who, dropped={"left": MOST}, **huge) for who in ("p", "q")]
    async with engine.begin() as connection:
        await accounting.store_reports(connection, some)
    [found] = (await client.get("/v1/accounting")).json()["producers"]
    assert (found["published"], found["dropped"], found["closes"]) == (MOST, {"left": MOST}, False)


async def test_former_producers_are_shown_as_their_sums(
    client: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    async with engine.begin() as connection:
        await accounting.store_reports(
            connection, [_read("p", "p", seen=3, published=3, highest_sequence=3)]
        )
        await connection.execute(text("UPDATE producer_report SET heard_at = '2026-01-01Z'"))
        assert await accounting.fold_producers(connection, limit=10) == 1
    answer = (await client.get("/v1/accounting")).json()
    _has_the_fields_of(Accounting, answer)
    assert answer["producers"] == []
    former = answer["former_producers"]
    assert (former["producers"], former["seen"], former["given"]) == (1, 3, 3)
    assert former["heard_until"] == "2026-01-01T00:00:00.000000Z"


def test_the_documents_example_is_a_whole_one() -> None:
    config = ProducerAccount.model_config["json_schema_extra"]
    assert isinstance(config, dict)
    examples: Any = config["examples"]
    for example in examples:
        _has_the_fields_of(ProducerAccount, example)
        ProducerAccount.model_validate(example)


def _has_the_fields_of(model: type[BaseModel], answer: dict[str, Any]) -> None:
    """Exactly those, at every depth."""
    model.model_validate(answer)
    assert set(answer) == set(model.model_fields)
    for name, field in model.model_fields.items():
        kinds = [field.annotation, *get_args(field.annotation)]
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel) and answer[name]:
                values = answer[name] if isinstance(answer[name], list) else [answer[name]]
                for value in values:
                    _has_the_fields_of(kind, value)
