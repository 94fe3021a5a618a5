"""The overview of a model over HTTP: its figures beside those of plain Python, bounds, rights."""

import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from inference_store.access.rights import Grant, Right
from inference_store.api.queries import ShownOverview
from inference_store.index import api_keys
from inference_store.index.accounting import ReceivedReport, store_reports
from inference_store.inference.events.event import Extras
from inference_store.inference.producer_reports import ProducerReport
from inference_store.query.counting import count_ended
from tests.answer_models import check_answer
from tests.integration.stored_inferences import NewInference, at
from tests.servers.marks import ON_CITUS
from tests.settings import TOKEN

from .conftest import Api, MakeApp, make_client
from .people import PARTITION, add_quarantined, make_event, make_rejected

_PATH = "/v1/models/model/overview"
_LABELS = ("person", "person", "car", "car", "dog", "cat", "bus", "bench", "truck")
_BURST = 30 * 3600


def _make_inferences() -> list[NewInference]:
    """Return one every twelve minutes of two and a half days, and a burst of 600 in a minute."""
    calm = [_make(n, at(720 * n + 0.25), _LABELS[n % 9], n / 299) for n in range(300)]
    return calm + [
        _make(1000 + n, at(_BURST + n / 10), ("car", "dog")[n % 2], 0.5) for n in range(600)
    ]


def _make(n: int, received: datetime, label: str, score: float) -> NewInference:
    failed, forwarded = n % 10 == 9, received + timedelta(milliseconds=1)
    return NewInference(
        f"id-{n}",
        received,
        predictions=None if failed else [(label, score), ("shade", score / 2)],
        extras=Extras(ok=not failed),
        flags=("capture_request_broken_off",) if n % 100 == 50 else (),
        times=(forwarded, forwarded + timedelta(milliseconds=n), None),
    )


async def _read(api: Api, **window: str) -> Any:
    answer = await api.get(_PATH, params=window)
    assert answer.status_code == 200, answer.text
    check_answer(ShownOverview, answer.content)
    return answer.json()


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _percentiles(inferences: Sequence[NewInference]) -> dict[str, float]:
    ms = sorted(float(int(one.inference_id[3:])) for one in inferences)
    return {f"p{at}": ms[math.ceil(len(ms) * at / 100) - 1] for at in (50, 95, 99)}


def _tops(inferences: Sequence[NewInference]) -> Counter[str]:
    return Counter(str(one.predictions[0][0]) for one in inferences if one.predictions)


def _check_counts(answer: Any, inferences: Sequence[NewInference]) -> None:
    """Check all that is exact, however many inferences there are."""
    bars = answer["bars"]
    for before, after in pairwise(bars):
        assert before["received_to"] == after["received_from"]
    for bar in bars:
        lo, hi = _instant(bar["received_from"]), _instant(bar["received_to"])
        here = [one for one in inferences if lo <= one.received_at < hi]
        failed = [one for one in here if one.extras.ok is False]
        assert (bar["inferences"], bar["errors"], bar["predicted"]) == (
            len(here),
            len(failed),
            len(here) - len(failed),
        )
        assert bar["sampled"] == len(here) if len(here) <= 200 else bar["sampled"] <= 400
    errors = sum(one.extras.ok is False for one in inferences)
    assert (answer["inferences"], answer["errors"]) == (len(inferences), errors)
    assert answer["estimated"] == (answer["sampled"] < len(inferences))
    newest = sorted((one for one in inferences if one.predictions), key=lambda one: one.uid)
    assert answer["newest"] == [str(one.uid) for one in reversed(newest[-12:])]


async def test_figures_are_those_of_the_inferences(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    inferences = _make_inferences()
    await api.store(*inferences)
    assert (await _read(api))["estimated"] is False
    monkeypatch.setattr("inference_store.query.overview.MOST_READ_WHOLE", 0)
    # in one partition and in several, at their ends and within a grain
    windows = [(0, None), (0.5, 86_400.0), (3601, 2 * 86_400), (_BURST + 7, _BURST + 31.5)]
    for is_counted in (False, not ON_CITUS):
        for since, until in windows:
            window = {"received_from": at(since).isoformat()}
            window |= {} if until is None else {"received_to": at(until).isoformat()}
            end = datetime.max.replace(tzinfo=UTC) if until is None else at(until)
            here = [one for one in inferences if at(since) <= one.received_at < end]
            answer = await _read(api, **window)
            _check_counts(answer, here)
            assert _instant(answer["received_from"]) == at(since)
            assert until is None or _instant(answer["received_to"]) == at(until)
        whole = await _read(api)
        _check_counts(whole, inferences)
        assert 30 <= len(whole["bars"]) <= 60
        if not is_counted:
            await count_ended(api.engine, seconds=600, before=at(86_400 * 30))
    stored = await api.fetch("SELECT count(*) FROM partition_count WHERE bars IS NOT NULL")
    assert (stored[0] > 0) != ON_CITUS

    # of the burst not all were read: 300 of it are cars, 240 dogs, and 60 errors
    assert whole["estimated"] is True
    burst = next(bar for bar in whole["bars"] if bar["inferences"] > 200)
    assert 50 <= burst["sampled"] <= 200
    names = [label["label"] for label in whole["labels"]]
    mix = dict(zip(names, burst["labels"], strict=True))
    assert abs(mix["car"] - 300) < 60
    assert abs(mix["dog"] - 240) < 60


async def test_a_burst_within_a_bar_is_sampled_as_the_rest_of_it(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thousand in two seconds that get slower, among one every nine seconds for an hour."""
    calm = [_make(0, at(9 * n), "car", 0.5) for n in range(400)]
    burst = [_make(n, at(1817 + n / 1000), "person", 0.5) for n in range(1, 2001)]
    await api.store(*calm, *burst)
    monkeypatch.setattr("inference_store.query.overview.MOST_READ_WHOLE", 0)
    window = {"received_from": at(0).isoformat(), "received_to": at(58 * 3600).isoformat()}
    for is_counted in (False, not ON_CITUS):
        answer = await _read(api, **window)
        [bar] = [bar for bar in answer["bars"] if bar["inferences"]]
        assert (bar["inferences"], bar["sampled"] <= 400) == (2400, True)
        for at_, exact in _percentiles([*calm, *burst]).items():
            assert abs(bar["latency"][at_] - exact) < 150, (at_, bar["latency"])
        shares = dict(zip((one["label"] for one in answer["labels"]), bar["labels"], strict=True))
        assert abs(shares["person"] - 1800) < 120, shares
        if not is_counted:
            await count_ended(api.engine, seconds=600, before=at(86_400 * 30))


async def test_what_is_read_whole_is_exact(api: Api) -> None:
    inferences = _make_inferences()[:300]
    await api.store(*inferences)
    answer = await _read(api)
    assert (answer["sampled"], answer["estimated"], answer["predicted"]) == (300, False, 270)
    assert answer["latency"] == _percentiles(inferences)
    tops = _tops(inferences)
    ranked = sorted(tops, key=lambda name: (-tops[name], name))
    shown = {label["label"]: label["inferences"] for label in answer["labels"]}
    assert list(shown.items()) == [(name, tops[name]) for name in ranked[:6]]
    assert answer["other_labels"] == sum(tops[name] for name in ranked[6:])
    for bar in answer["bars"]:
        lo, hi = _instant(bar["received_from"]), _instant(bar["received_to"])
        here = [one for one in inferences if lo <= one.received_at < hi]
        assert bar["latency"] == (_percentiles(here) if here else None)
        mix = _tops(here)
        assert bar["labels"] == [mix[name] for name in shown]
        assert bar["other_labels"] == sum(mix[name] for name in ranked[6:])
        assert sum(bar["scores"]) == sum(mix.values())
    scores = [one.predictions[0][1] for one in inferences if one.predictions]
    expected = Counter(min(int(score * 20 + 1e-9), 19) for score in scores)  # type: ignore[operator]
    assert [one["inferences"] for one in answer["scores"]] == [expected[n] for n in range(20)]
    assert (answer["scores"][3]["low"], answer["scores"][3]["high"]) == (0.15, 0.2)
    by_bin = zip(*(bar["scores"] for bar in answer["bars"]), strict=True)
    assert [sum(bars) for bars in by_bin] == [expected[n] for n in range(20)]
    problem = {"property": "request_problem", "value": "broken_off", "inferences": 3}
    assert answer["problems"] == [problem]
    await api.ask("/v1/models/model/inferences/count", {"filter": "request_problem = 'broken_off'"})


async def test_bad_windows_rights_and_what_waits(api: Api, make_app: MakeApp) -> None:
    await api.store(_make(1, at(1), "car", 0.5))
    await api.call("PUT", "/v1/models/empty", {})
    ages = {"received_from": "0001-01-01T00:00:00Z", "received_to": "9999-12-31T23:59:59.999999Z"}
    assert (await _read(api, **ages))["inferences"] == 1
    assert (await _read(api, received_from=ages["received_to"]))["inferences"] == 0
    empty = await api.read("/v1/models/empty/overview")
    assert (empty["inferences"], empty["bars"], empty["latency"]) == (0, [], None)
    for window, words in (
        ({"received_from": "yesterday"}, "received_from"),
        ({"received_from": "2026-11-02T00:00:00Z", "received_to": "2026-11-01T00:00:00Z"}, "later"),
        ({"since": "24h"}, "received_from"),
    ):
        assert words in str(await api.read(_PATH, status=422, **window))
    assert "The nearest are model" in str(await api.read("/v1/models/modell/overview", status=404))

    letters = [make_rejected(n, make_event(n)) for n in range(3)]
    other = make_rejected(3, make_event(3, model_id="other"), "other")
    parked = [make_rejected(n, make_event(n)) for n in (4, 5)]
    await add_quarantined(api, [*letters, other], parked)
    report = ProducerReport(
        producer="p", reporter="p", number=1, booted_at=at(0), reported_at=at(1),
        seen=3, published=2, dropped={"refused": 1},
    )  # fmt: skip
    await api.transact(store_reports, [ReceivedReport(report, PARTITION, 0)])
    assert await _find_waiting(api) == (3, 2)
    books = (await _read(api))["captured"]
    assert (books["seen"], books["captured"], books["missed"]) == (3, 2, {"refused": 1})
    grants = [Grant(rights=(Right.READ,), model_id=name) for name in ("model", "other")]
    async with make_client(make_app(auth="on", api_token=TOKEN)) as guarded:
        for grant, expected in zip(grants, ((None, None), None), strict=True):
            _, secret = await api.transact(api_keys.create, "a reader", [grant], by="test")
            guarded.headers["Authorization"] = f"Bearer {secret.text}"
            if expected is None:
                await guarded.read(_PATH, status=404)
            else:
                assert await _find_waiting(guarded) == expected
                assert (await _read(guarded))["captured"] is None


async def _find_waiting(api: Api) -> tuple[Any, Any]:
    answer = await _read(api)
    return answer["dead_letters"], answer["parked_events"]
