"""Which predictions of an answer match: the filter's conditions on predictions, one by one."""

import csv
import io
import json
from collections.abc import Callable
from typing import Any, Final

import nanoarrow
from arro3.io import read_parquet

from .conftest import LINES, Api
from .hallway import MODEL, make_frames

_QUERY: Final = f"/v1/models/{MODEL}/inferences/query"
_EXPORTS: Final = f"/v1/models/{MODEL}/exports"
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
    ({"filter": "(prediction(label = 'car')) IN (TRUE)"}, _is_car),
    ({"filter": "NOT (prediction(label = 'car')) IN (FALSE)"}, _is_car),
    ({"filter": "(prediction(label = 'car')) IN (TRUE, FALSE)"}, None),
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
    for sign, name in (("", "score"), ("-", "score"), ("-", "rank")):
        found: list[Any] = []
        cursor: Any = None
        while not found or cursor:
            more = {**sort, "sort": f"{sign}prediction.{name}", "limit": 7, "cursor": cursor}
            page = await api.ask(_QUERY, {"include": ["predictions"], **more})
            found, cursor = [*found, *page["items"]], page["next"]
        scores = [
            [one[name] for one in item["predictions"] or () if one["matched"]] for item in found
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


async def test_the_parts_of_exports_say_it_as_streams_do(api: Api) -> None:
    await api.store(*make_frames())
    question = {"filter": "prediction(label = 'car') OR frame_number < 8954"}
    include = {"include": ["metadata", "predictions"], "sort": "received_at"}
    expected = await api.ask(_QUERY, {**question, **include, "limit": 1000})
    exports = {
        format: await api.ask(_EXPORTS, {**question, "format": format}, status=202)
        for format in ("jsonl", "arrow", "csv", "parquet")
    }
    everything = await api.ask(_EXPORTS, {"format": "jsonl"}, status=202)
    await api.run_retention()
    parts = {
        format: (await api.get(f"/v1/exports/{export['id']}/parts/1")).content
        for format, export in exports.items()
    }
    lines = [json.loads(line) for line in parts["jsonl"].splitlines()]
    arrow = nanoarrow.ArrayStream.from_readable(parts["arrow"]).read_all().to_pylist()
    parquet = nanoarrow.ArrayStream(read_parquet(parts["parquet"])).read_all().to_pylist()
    rows = csv.DictReader(io.StringIO(parts["csv"].decode()))
    read = {
        "jsonl": [line["predictions"] or [] for line in lines],
        "arrow": [row["predictions"] for row in arrow],
        "parquet": [row["predictions"] for row in parquet],
        "csv": [json.loads(row["predictions"]) for row in rows],
    }
    wanted = [
        [(one["label"], one["matched"]) for one in item["predictions"]]
        for item in expected["items"]
    ]
    assert {is_it for item in wanted for _, is_it in item} == {True, False}
    for format, items in read.items():
        assert [[(one["label"], one["matched"]) for one in item] for item in items] == wanted, (
            format
        )
    part = (await api.get(f"/v1/exports/{everything['id']}/parts/1")).text
    items = [json.loads(line)["predictions"] for line in part.splitlines()]
    assert {one["matched"] for item in items for one in item} == {None}
