"""Which predictions of an answer match: the filter's conditions on predictions, one by one."""

import json
from collections.abc import Callable
from typing import Any, Final

from .conftest import LINES, Api
from .hallway import MODEL, make_frames

_QUERY: Final = f"/v1/models/{MODEL}/inferences/query"
_Oracle = Callable[[dict[str, Any]], bool]


def _is_person(one: dict[str, Any]) -> bool:
    return bool(one["label"] == "person")


def _is_car(one: dict[str, Any]) -> bool:
    return bool(one["label"] == "car")


def _is_low(one: dict[str, Any]) -> bool:
    return bool(one["score"] < 0.4)


_CASES: Final[list[tuple[dict[str, Any], _Oracle | None]]] = [
    ({}, None),
    ({"filter": "frame_number > 8990 AND NOT top_label = 'car'"}, None),
    ({"filter": "count_predictions() >= 2 OR prediction()"}, None),
    ({"filter": "NOT prediction(label = 'car')"}, None),
    ({"filter": "prediction(label = 'person' AND score < 0.4)"},
     lambda o: _is_person(o) and _is_low(o)),
    ({"filter": "prediction(label = 'person') AND prediction(score < 0.4)"},
     lambda o: _is_person(o) or _is_low(o)),
    ({"filter": "prediction(label = 'person') AND NOT prediction(label = 'car')"}, _is_person),
    ({"filter": "NOT (NOT prediction(label = 'car') AND ok)"}, _is_car),
    ({"filter": "prediction(NOT label = 'car') OR frame_number < 8990"}, lambda o: not _is_car(o)),
    ({"filter": "count_predictions(area >= 2000) + 1 > 2"}, lambda o: o["area"] >= 2000),
    ({"filter": "ok AND count_predictions(label = 'car') < 1"}, _is_car),
    ({"prediction": {"label": ["car", "bus"]}}, _is_car),
    ({"prediction": {"score": {"lt": 0.4}}, "filter": "prediction(label = 'person')"},
     lambda o: _is_person(o) or _is_low(o)),
]  # fmt: skip


async def test_each_prediction_says_whether_it_matches(api: Api) -> None:
    await api.store(*make_frames())
    for question, oracle in _CASES:
        for more in ({"limit": 1000}, {"sort": "frame_number", "limit": 60}):
            page = await api.ask(_QUERY, {"include": ["predictions"], **question, **more})
            predictions = [one for item in page["items"] for one in item["predictions"]]
            assert page["items"], question
            for one in predictions:
                assert one["matched"] is (oracle and oracle(one)), (question, one)
    few = {"filter": "prediction(label = 'car')", "fields": ["predictions.matched"]}
    answer = await api.post(_QUERY, json=few, headers=LINES)
    *lines, _ = map(json.loads, answer.text.splitlines())
    assert len(lines) == 17
    assert all(sum(one["matched"] for one in line["predictions"]) == 1 for line in lines)
    sort = {"filter": "prediction(label = 'person') OR frame_number < 8954"}
    for sign in ("", "-"):
        found: list[Any] = []
        cursor: Any = None
        while not found or cursor:
            more = {**sort, "sort": f"{sign}prediction.score", "limit": 7, "cursor": cursor}
            page = await api.ask(_QUERY, {"include": ["predictions"], **more})
            found, cursor = [*found, *page["items"]], page["next"]
        scores = [
            [one["score"] for one in item["predictions"] or () if one["matched"]] for item in found
        ]
        expected = sorted({"": min, "-": max}[sign](some) for some in scores if some)
        firsts = [({"": min, "-": max}[sign])(some) for some in scores if some]
        assert firsts == (expected[::-1] if sign else expected)
        assert not any(scores[len(firsts) :]), "what has none comes last"
        assert len({item["uid"] for item in found}) == len(found) > 60
    across = {"include": ["predictions"], "filter": "prediction(label = 'car')", "explain": True}
    page = await api.ask("/v1/inferences/query", across)
    assert {one["matched"] for item in page["items"] for one in item["predictions"]} == {
        True,
        False,
    }
    one = await api.read(f"/v1/models/{MODEL}/inferences/frame-006")
    assert {of["matched"] for of in one["predictions"]} == {None}
