"""Drift over HTTP: planted changes between windows, by time, filter and view; what is refused."""

import random
from datetime import timedelta
from typing import Any

import pytest

from inference_store.api.drift import ShownDrift
from inference_store.inference.events.event import Extras
from inference_store.inference.task_types import Prediction
from tests.answer_models import check_answer
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api

_PATH = "/v1/models/model/inferences/drift"
_NUMBER = 240
_HALF = at(_NUMBER * 60)
_BEFORE = {"received_at": {"to": _HALF.isoformat()}}
_AFTER = {"received_at": {"from": _HALF.isoformat()}}
_BY_HALVES = {"reference": _BEFORE, "current": _AFTER}


def _make(rng: random.Random, n: int) -> NewInference:
    """In the second half one camera is darker and sees more dogs, whose boxes are smaller, and a
    key goes missing; heat is a text, and nothing happens to it."""
    is_late, camera = n >= _NUMBER, ("hall", "yard", "gate")[n % 3]
    is_changed = is_late and camera == "yard"
    size = rng.uniform(40, 80) / (2 if is_changed else 1)
    label = rng.choices(("person", "dog"), (1, 4) if is_changed else (4, 1))[0]
    left = rng.uniform(0, 100)
    box: Any = {"xmin": left, "xmax": left + size, "ymin": 10.0, "ymax": 10 + size, "area": size**2}
    items: list[tuple[str, str, Any]] = [
        ("brightness", "float", str(round(rng.gauss(120, 12) - 40 * is_changed, 1))),
        ("camera", "string", camera),
        ("sensor", "json", f'{{"heat": "{rng.gauss(20, 3):.1f}"}}'),
        ("tags", "json", '["a", "b"]'),
        ("shift_start", "timestamp", "2026-11-01T06:00:00Z"),
        ("height", "int", "480"),
        ("request", "string", f"request-{n}"),
    ]
    if rng.random() > (0.3 if is_late else 0):
        items.append(("is_night", "bool", str(rng.random() < 0.3)))
    received = at(n * 60)
    forwarded = received + timedelta(milliseconds=1)
    return NewInference(
        f"id-{n}",
        received,
        items,
        [Prediction(ordinal=0, rank=1, output=0, label=label, score=rng.uniform(0.5, 1), **box)],
        extras=Extras(ok=rng.random() > 0.05),
        times=(forwarded, forwarded + timedelta(milliseconds=rng.gauss(30, 4)), None),
    )


async def _store(api: Api) -> None:
    rng = random.Random(11)
    await api.store(*(_make(rng, n) for n in range(2 * _NUMBER)))


async def _compare(api: Api, **body: Any) -> Any:
    answer = await api.post(_PATH, json=_BY_HALVES | body)
    assert answer.status_code == 200, answer.text
    check_answer(ShownDrift, answer.content)
    return answer.json()


def _drifted(answer: Any) -> set[str]:
    assert answer["drifted"] == any(row["drifted"] for row in answer["rows"])
    return {row["name"] for row in answer["rows"] if row["drifted"]}


async def test_planted_changes_are_found_by_time_filter_and_view(api: Api) -> None:
    await _store(api)
    answer = await _compare(api)
    rows = {row["name"]: row for row in answer["rows"]}
    found = {"brightness", "top_label", "label", "is_night IS NULL"}
    found |= {"prediction.area", "prediction.center_y"}
    assert _drifted(answer) == found
    same = {"NOT ok", "model_ms", "prediction_count", "top_score", "prediction.score"}
    same |= {"prediction.center_x", "prediction.aspect", "camera", "sensor.heat"}
    assert set(rows) - found == same | {"metadata.height", "is_night"}
    assert answer["keys_left_out"] == 3  # a list, a time, and ids
    assert answer["reference"]["inferences"] == answer["current"]["sampled"] == _NUMBER
    assert [row["effect"] for row in answer["rows"]] == sorted(
        (row["effect"] for row in answer["rows"]), reverse=True
    )
    brightness, missing = rows["brightness"], rows["is_night IS NULL"]
    assert brightness["reference"]["mean"] == pytest.approx(120, abs=3)
    assert brightness["current"]["mean"] == pytest.approx(120 - 40 / 3, abs=3)
    assert brightness["psi"] > brightness["psi_critical"]
    assert sum(one["current"] for one in brightness["bins"]) == _NUMBER
    assert (rows["sensor.heat"]["kind"], rows["camera"]["kind"]) == ("number", "category")
    assert missing["interval"][0] < missing["effect"] < missing["interval"][1]
    # the filter of a row opens what it counts
    for side, share in (("reference", 0), ("current", missing["current"]["share"])):
        asked = {"filter": missing[side]["filter"]}
        counted = await api.ask("/v1/models/model/inferences/count", asked)
        assert counted["count"] == round(share * _NUMBER)
    # of the cameras that did not change, nothing did but the key
    others = {"filter": "camera <> 'yard'"}
    view = {"name": "others", "model_id": "model", "time": f"{_HALF:%Y-%m-%dT%H:%M:%SZ}.."}
    saved = await api.ask("/v1/views", view | others, status=201)
    windows = {"reference": _BEFORE | others, "current": {"view": saved["id"]}}
    assert _drifted(await _compare(api, **windows)) == {"is_night IS NULL"}
    windows = {"reference": {"filter": "camera = 'hall'"}, "current": {"filter": "camera = 'gate'"}}
    assert "brightness" not in _drifted(await _compare(api, **windows))
    # a sample is as good, and names are taken as an aggregate takes them
    names = ["request", "brightness", {"name": "sensor.heat", "type": "string"}, "label"]
    sampled = await _compare(api, of=names, sample=200, level=0.01)
    assert sampled["current"] == sampled["current"] | {"inferences": _NUMBER, "sampled": 200}
    assert _drifted(sampled) == {"brightness", "label"}
    assert "different values to be compared: request." in str(sampled["warnings"])
    few = {"current": {"received_at": {"from": at(2 * _NUMBER * 60 - 60 * 50).isoformat()}}}
    answer = await _compare(api, of=["brightness"], **few)
    assert (answer["rows"][0]["too_few"], answer["rows"][0]["current"]["n"]) == (True, 50)
    assert (answer["drifted"], answer["comparisons"]) == (False, 0)


async def test_refuses_what_cannot_be_compared(api: Api) -> None:
    await api.store(*(_make(random.Random(n), n) for n in range(3)))
    other = {"name": "n", "model_id": "other"}
    await api.store(NewInference(model_id="other"))
    view = await api.ask("/v1/views", other, status=201)
    nothing = {"filter": "brightness < 0"}
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"of": ["brightnes"]}, "of[0]", "brightness"),
        ({"of": ["tags[]"]}, "of[0]", "several values"),
        ({"of": ["prediction.label"]}, "of[0]", "label"),
        ({"of": ["prediction.aspekt"]}, "of[0]", "no column"),
        ({"of": ["shift_start"]}, "of[0]", "time"),
        ({"current": _BEFORE}, "current", "the same"),
        ({"current": {"filter": "brightnes > 1"}}, "current.filter", "brightness"),
        ({"current": {"filter": "ok AND"}}, "current.filter", "line 1"),
        ({"current": nothing}, "current", "empty"),
        ({"reference": nothing, "current": {}}, "reference", "empty"),
        ({"current": {"view": view["id"]}}, "current.view", "other"),
        ({"current": {"received_at": {"from": "now"}}}, "current.received_at.from", "relative"),
        ({"timeout_seconds": 1e6}, "timeout_seconds", "at most"),
    ]
    both = {"reference": _BEFORE, "current": {"filter": "ok"}}
    for body, path, says in cases:
        answer = await api.post(_PATH, json=both | body)
        assert answer.status_code == 422, (body, answer.text)
        [error] = answer.json()["errors"]
        assert error["path"].removeprefix("body.") == path, error
        assert says in str(error), error
    # what windows have in common is seen by what they find
    refused = await api.post(_PATH, json={"reference": {}, "current": _BEFORE})
    assert (refused.status_code, "the same" in refused.text) == (422, True)
    first = {"received_at": {"to": at(90).isoformat()}}
    overlap = await api.ask(_PATH, {"reference": {"filter": "NOT model_ms < 0"}, "current": first})
    assert "overlap" in str(overlap["warnings"])
    assert not overlap["drifted"]
    assert all(row["too_few"] for row in overlap["rows"])
