"""The accounts of producers and partitions over HTTP, and the dead letters that they count."""

import base64
from datetime import UTC, datetime
from typing import Any

from inference_store.api.accounting import Accounting
from inference_store.index import accounting, unsettled
from inference_store.index.accounting import LogEnd, Outcome, PartitionId, ReceivedReport
from inference_store.index.unsettled import Record, Rejection
from inference_store.inference.producer_reports import ProducerReport
from tests.answer_models import check_answer
from tests.integration.stored_inferences import at

from .conftest import Api

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
MOST = 2**63 - 1
EVENTS = PartitionId("default", "inference-events", 1, 0)


def _make_report(producer: str, reporter: str, **counts: Any) -> ReceivedReport:
    times: dict[str, Any] = {"booted_at": AT, "reported_at": AT}
    report = ProducerReport(producer=producer, reporter=reporter, number=1, **times, **counts)
    return ReceivedReport(report, PartitionId("default", "reports", 0, 0), offset=0)


async def _read_accounts(api: Api) -> dict[str, Any]:
    """Return the accounts, which have the fields that the document describes."""
    answer = await api.get("/v1/accounting")
    check_answer(Accounting, answer.content)
    return dict(answer.json())


async def test_shows_producer_with_its_reports(api: Api) -> None:
    own = _make_report("p", "p", seen=9, sampled_out=1, dropped={"no_budget": 2}, queued=2,
                       spooled=1, published=4, events=8, highest_sequence=8)  # fmt: skip
    finder = _make_report("p", "q", seen=1, published=1, events=2, highest_sequence=8, final=True)
    async with api.engine.begin() as connection:
        await accounting.open_partition(connection, EVENTS, first=0)
        await accounting.add_sequences(connection, EVENTS, {"p": [0, 1, 2, 3, 5, 7]})
        await accounting.store_reports(connection, [own, finder])
    answer = await _read_accounts(api)
    [producer] = answer["producers"]
    assert (producer["state"], producer["closes"]) == ("dead", False)
    assert (producer["given"], producer["arrived"], producer["missing"]) == (8, 5, 3)
    assert producer["reason"] == (
        "2 dropped or refused, and counted (no_budget 2); 1 lost in memory when the producer died"
    )
    assert [report["reporter"] for report in producer["reports"]] == ["p", "q"]
    assert producer["reports"][0]["booted_at"] == "2026-11-01T12:00:00.000000Z"
    assert answer["former_producers"] is None


async def test_answers_with_very_large_sums(api: Api) -> None:
    huge = {"seen": MOST, "queued": MOST, "published": MOST, "highest_sequence": MOST}
    reports = [_make_report("p", who, dropped={"left": MOST}, **huge) for who in ("p", "q")]
    await api.transact(accounting.store_reports, reports)
    [producer] = (await _read_accounts(api))["producers"]
    assert (producer["given"], producer["closes"]) == (MOST, False)
    assert [report["dropped"] for report in producer["reports"]] == [{"left": MOST}] * 2


async def test_shows_former_producers_as_sums(api: Api) -> None:
    report = _make_report("p", "p", seen=3, published=3, highest_sequence=3)
    await api.transact(accounting.store_reports, [report])
    await api.execute("UPDATE producer_report SET heard_at = '2026-01-01Z'")
    assert await api.transact(accounting.fold_producers, limit=10) == 1
    answer = await _read_accounts(api)
    assert answer["producers"] == []
    former = answer["former_producers"]
    assert (former["producers"], former["given"], former["arrived"]) == (1, 3, 0)
    assert former["heard_until"] == "2026-01-01T00:00:00.000000Z"


async def test_shows_waiting_messages_of_each_partition(api: Api) -> None:
    old, new, unseen = (PartitionId("default", "events", epoch, 0) for epoch in (0, 1, 2))
    async with api.engine.begin() as connection:
        for partition in (old, new):
            await accounting.open_partition(connection, partition, first=3)
        for end in (9, 10):
            await accounting.store_ends(
                connection, {partition: LogEnd(end, AT) for partition in (old, new, unseen)}
            )
    first, second = (await _read_accounts(api))["partitions"]
    names = ("waiting", "oldest_waiting_at", "lag_measured_at")
    assert [first[name] for name in names] == [None, None, None]
    assert [second[name] for name in names[:2]] == [7, "2026-11-01T12:00:00.000000Z"]
    assert datetime.fromisoformat(second["lag_measured_at"]).tzinfo is not None
    lost = {Outcome.LOST: 8}
    await api.transact(accounting.move_offsets, new, lo=3, hi=11, outcomes=lost, last=None)
    [_, second] = (await _read_accounts(api))["partitions"]
    assert [second[name] for name in names[:2]] == [0, None]


async def test_dead_letters(api: Api) -> None:
    letters = [
        (
            Record(EVENTS, n, at(n), b"key", b'{"n": "\xff"}' if n == 0 else b"{}"),
            Rejection("not_json" if n % 2 else "missing_field", "why", "m", "i"),
        )
        for n in range(5)
    ]
    async with api.engine.begin() as connection:
        await accounting.open_partition(connection, EVENTS, first=0)
        await unsettled.add_dead(connection, letters)
        dead = {Outcome.DEAD: 5}
        await accounting.move_offsets(connection, EVENTS, lo=0, hi=5, outcomes=dead, last=None)
    answer = await _read_accounts(api)
    [account] = answer["partitions"]
    assert (account["dead"], account["dead_open"], account["next"]) == (5, 5, 5)
    assert answer["closes"] is True

    path = "/v1/dead-letters"
    page = await api.read(path, limit=3)
    assert [item["offset"] for item in page["items"]] == [4, 3, 2]
    rest = await api.read(path, limit=3, cursor=page["next"])
    assert [item["offset"] for item in rest["items"]] == [1, 0]
    filtered = await api.read(path, reason="not_json")
    assert [item["offset"] for item in filtered["items"]] == [3, 1]
    other, first = (f"{path}/{item['id']}" for item in rest["items"])
    whole = await api.read(first)
    assert base64.b64decode(whole["payload_base64"]) == b'{"n": "\xff"}'
    assert (whole["payload"], whole["detail"]) == (None, "why")
    discarded = await api.ask(f"{first}/discard", {"reason": "a test"})
    assert discarded["state"] == "discarded"
    await api.ask(f"{first}/redrive", None, status=409)
    await api.ask(f"{first}/discard", {"reason": ""}, status=422)
    assert (await api.ask(f"{other}/redrive", None, status=202))["state"] == "redrive"
    redriven = await api.ask(f"{path}/redrive", {"reason": "not_json"}, status=202)
    assert redriven == {"redriven": 1}


async def test_parked_events(api: Api) -> None:
    """Listed, made due, and discarded: then the books have a dead letter that is not open."""
    blob_missing = Rejection("blob_missing", "why", "m", "i")
    waiting = [(Record(EVENTS, n, at(n), None, b"{}"), blob_missing, f"s3://b/{n}") for n in (0, 1)]
    async with api.engine.begin() as connection:
        await accounting.open_partition(connection, EVENTS, first=0)
        await unsettled.park(connection, waiting)
        outcomes = {Outcome.PARKED: 2}
        await accounting.move_offsets(connection, EVENTS, lo=0, hi=2, outcomes=outcomes, last=None)
        assert await unsettled.find_due(connection, limit=2) == []
    await api.execute("UPDATE unsettled_event SET next_attempt_at = now() + interval '1 hour'")

    path = "/v1/parked-events"
    page = await api.read(path, limit=1)
    [second] = page["items"]
    [first] = (await api.read(path, limit=1, cursor=page["next"]))["items"]
    assert [event["missing"] for event in (first, second)] == ["s3://b/0", "s3://b/1"]
    assert (await api.read(path, reason="blob_forbidden"))["items"] == []
    assert (await api.ask(f"{path}/{first['id']}/retry", None, status=202))["offset"] == 0
    async with api.engine.connect() as connection:
        assert [event.id for event in await unsettled.find_due(connection, limit=2)] == [
            first["id"]
        ]
    assert await api.ask(f"{path}/retry", {"model_id": "m"}, status=202) == {"retried": 2}
    await api.ask(f"{path}/{first['id']}/discard", {"reason": ""}, status=422)
    letter = await api.ask(f"{path}/{first['id']}/discard", {"reason": "it never came"})
    assert (letter["state"], letter["discard_reason"]) == ("discarded", "it never came")
    await api.ask(f"{path}/{first['id']}/retry", None, status=404)
    assert [item["id"] for item in (await api.read("/v1/dead-letters"))["items"]] == [letter["id"]]
    [account] = (answer := await _read_accounts(api))["partitions"]
    assert [account[name] for name in ("parked", "dead", "dead_open")] == [1, 1, 0]
    assert answer["closes"] is True
