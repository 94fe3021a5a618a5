"""Inferences over HTTP: query, read, blobs, erasure; form and cost of answers; repeated keys."""

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
from sqlalchemy import update

from inference_store.api import inference_models
from inference_store.index.tables import inference
from inference_store.inference.events.event import Extras
from tests.answer_models import check_answer
from tests.integration.statements import record_statements
from tests.integration.stored_inferences import NewInference, at
from tests.settings import TOKEN

from .conftest import LINES, OWNER, Api, MakeApp, make_client
from .people import erase, place_hold, read_erasure, release_hold, request_erasure

_PATH = "/v1/models/model/inferences"
_QUERY = f"{_PATH}/query"
_INFERENCES = [
    NewInference(
        f"id-{n}",
        at(n * 40_000),
        [("frame_number", "int", str(8_995 + n)), ("data_source", "string", "hallway")],
        [("person", n / 10)],
    )
    for n in range(10)
]


async def test_queries_by_metadata_ids_and_a_half_open_window(api: Api) -> None:
    await api.store(*_INFERENCES)
    condition = {"key": "frame_number", "type": "int", "operator": "GREATER_THAN", "value": "9000"}
    found = await api.find_ids(metadata_filter=[condition])
    assert found == ["id-9", "id-8", "id-7", "id-6"]
    first = await api.find_ids(metadata_filter=[condition], sort="received_at", limit=2)
    assert first == ["id-6", "id-7"]
    body = {"prediction": {"label": "person", "score": {"lt": 0.4}}, "metadata_filter": []}
    assert await api.ask(f"{_PATH}/count", body) == {"count": 4, "warnings": []}
    # Erasures, holds and queries all accept `uid:<uuid>` in the same field.
    uid = (await api.read(f"{_PATH}/id-3"))["uid"]
    assert await api.find_ids(inference_ids=[f"uid:{uid.upper()}"]) == ["id-3"]
    both = await api.find_ids(inference_ids=["id-7", f"uid:{uid}", "id-none"])
    assert both == ["id-7", "id-3"]
    refused = await api.ask(_QUERY, {"inference_ids": ["uid:xyz"]}, status=422)
    assert [fault["path"] for fault in refused["errors"]] == ["inference_ids"]
    begin, end = (_INFERENCES[n].received_at.isoformat() for n in (2, 4))
    assert await api.find_ids(received_at={"from": begin, "to": end}) == ["id-3", "id-2"]
    page = await api.read(_PATH, received_from=begin, received_to=end, include="metadata")
    assert [item["inference_id"] for item in page["items"]] == ["id-3", "id-2"]
    assert page["items"][0]["metadata"][0]["key"] == "frame_number"


async def test_numbers_are_exact(api: Api) -> None:
    values = ["0.1", "0.1000000000000000055511151231257827", "98765432109876543210", "1e300"]
    inferences = [NewInference(v, at(n), [("x", "float", v)]) for n, v in enumerate(values)]
    await api.store(*inferences)
    headers = {"Content-Type": "application/json"}
    for value in values:
        raw = f'{{"metadata_filter": [{{"key": "x", "operator": "eq", "value": {value}}}]}}'
        answer = await api.post(_QUERY, content=raw, headers=headers)
        assert [item["inference_id"] for item in answer.json()["items"]] == [value]


async def test_accepts_any_inference_id(api: Api) -> None:
    for n, inference_id in enumerate(("a/b", "a%2Fb", "ü", "query", "count", "%", "x y")):
        target = NewInference(inference_id, at(n), aliases=(f"other/{n}",))
        await api.store(target)
        for name in (inference_id, f"other/{n}", f"uid:{target.uid}"):
            read = await api.read(f"{_PATH}/{quote(name, safe='')}")
            assert (read["inference_id"], read["aliases"]) == (inference_id, [f"other/{n}"]), name
            assert read["count"] == 1, name


async def test_times_and_latencies(api: Api) -> None:
    target = NewInference("one", at(0.000001))
    await api.store(target)
    read = await api.read(f"{_PATH}/one")
    assert read["received_at"] == "2026-11-01T00:00:00.000001Z"
    assert (read["pre_ms"], read["ok"], read["width"]) == (None, None, None)
    forwarded_at = target.received_at + timedelta(microseconds=1500)
    await api.execute(update(inference).values(forwarded_at=forwarded_at))
    assert (await api.read(f"{_PATH}/one"))["pre_ms"] == 1.5


async def test_streams_blobs_with_their_type(api: Api) -> None:
    image = b"\xff\xd8" + b"x" * 1_000_000
    keys = (api.put_blob("d", image, "image/jpeg"), f"{api.bucket}/r", None)
    extras = Extras(data_content_type="image/png")
    await api.store(NewInference("one", keys=keys, extras=extras))
    base = f"{_PATH}/one"
    data = await api.get(f"{base}/data")
    assert (data.content, data.headers["content-type"]) == (image, "image/png")
    assert data.headers["x-content-type-options"] == "nosniff"
    assert "not in the bucket" in str(await api.read(f"{base}/response", status=404))
    await api.read(f"{base}/metadata", status=404)
    urls = (await api.read(base))["urls"]
    assert urls["metadata"] is None
    async with httpx.AsyncClient(timeout=120) as anyone:
        assert (await anyone.get(urls["data"])).content == image
    await api.execute(update(inference).values(data_deleted_at=at(9)))
    await api.read(f"{base}/data", status=410)
    assert (await api.read(base))["urls"]["data"] is None


async def test_erases_inference(api: Api) -> None:
    await api.store(*(NewInference(id, at(n)) for n, id in enumerate(("one", "one", "two"))))
    answer = await api.delete(f"{_PATH}/one")
    assert answer.status_code == 202, answer.text
    erasure = answer.json()
    assert (erasure["state"], erasure["model_id"]) == ("pending", "model")
    assert await api.read(answer.headers["Location"]) == erasure
    assert (await api.read("/v1/erasures"))["items"] == [erasure]
    await api.read(f"{_PATH}/one", status=404)
    assert await api.find_ids() == ["two"]
    await api.call("DELETE", f"{_PATH}/one", status=202)  # hidden, and requested again
    await api.call("DELETE", f"{_PATH}/never", status=404)


_EVERYTHING = ["metadata", "predictions", "urls"]
_TYPED_ITEMS = [
    ("frame_number", "int", "7"),
    ("camera", "json", '{"name": "hallway", "angle": 10}'),
    ("latitude", "float", "52.5"),
    ("longitude", "float", "13.4"),
]
_BODIES: list[dict[str, Any]] = [
    {},
    {"include": _EVERYTHING, "limit": 1},
    {"include": ["metadata"], "metadata_as": "object", "explain": True},
    {"fields": ["uid", "predictions.label", "urls.data", "metadata.frame_number"]},
    {"fields": ["uid", "metadata.no"], "unknown_keys": "empty"},
    {"filter": "received_at < now() - duration('PT1H')", "sort": "frame_number"},
    {"sort": "distance(location, POINT(13.4 52.5))"},
    {"sample": {"size": 2}},
]


async def test_answers_match_their_models(api: Api) -> None:
    """Nothing validates them at run time."""
    await api.store(
        *(NewInference(f"id-{n}", at(n), _TYPED_ITEMS, [("person", 0.5)]) for n in range(3))
    )
    for body in _BODIES:
        for path in (f"{_PATH}/query", "/v1/inferences/query"):
            answer = await api.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["items"], body
            check_answer(inference_models.InferencePage, answer.content)
    for body in _BODIES[:4]:
        whole = {name: body[name] for name in body if name not in {"limit", "explain"}}
        answer = await api.post(f"{_PATH}/query", json=whole, headers=LINES)
        *items, end = answer.content.splitlines()
        assert len(items) == 3, body
        for item in items:
            check_answer(inference_models.StreamedInference, item)
        check_answer(inference_models.StreamEnd, end)
    answer = await api.get(f"{_PATH}/id-1", params={"include": _EVERYTHING})
    check_answer(inference_models.InferenceDetail, answer.content)
    change = {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}
    changed = await api.post(f"{_PATH}/id-1/metadata", json=change)
    check_answer(inference_models.EditedInference, changed.content)


async def test_round_trips(make_app: MakeApp) -> None:
    """The number of Postgres statements for each request, which dominate its cost."""
    async with make_client(make_app(auth="on", api_token=TOKEN)) as api:
        api.headers.update(OWNER)
        await api.store(*(NewInference(f"id-{n}", at(n), [("n", "int", "1")]) for n in range(3)))
        for method, path, body, most in (
            # the model with its extent, the look-up, the row, the audit
            ("GET", f"{_PATH}/id-1", None, 4),
            ("GET", f"{_PATH}/id-1?include=predictions", None, 3),
            # the model with its extent, and the page
            ("POST", _QUERY, {}, 2),
            ("POST", _QUERY, {"include": ["metadata", "predictions"]}, 2),
        ):
            for _ in range(2):  # the first request also looks up the key, and whether this is Citus
                with record_statements(api.engine) as statements:
                    await api.call(method, path, body, status=200)
            assert len(statements) <= most, [statement.text for statement in statements]
            assert not any("COMMIT" in statement.text for statement in statements)


async def test_an_index_leads_to_what_is_asked_for(api: Api) -> None:
    """The scans that EXPLAIN names."""
    items = [[("n", "int", str(n)), ("s", "string", f"s{n % 50}")] for n in range(3000)]
    await api.store(*(NewInference(f"{n}", at(n), item) for n, item in enumerate(items)))
    await api.execute("ANALYZE")
    for path, body, scan in (
        (_QUERY, {}, "Index Only Scan on inference"),
        (_QUERY, {"sort": "-n"}, "Index Only Scan on metadata_number"),
        (f"{_PATH}/count", {"filter": "n > 2900"}, "Bitmap Heap Scan on metadata_number"),
        (f"{_PATH}/count", {"filter": "s = 's7'"}, "Bitmap Heap Scan on metadata_string"),
    ):
        [step] = (await api.ask(path, body | {"explain": True}))["explain"]["steps"]
        assert step["what"].endswith(scan), body


_M = "/v1/models/model"
_P1, _P2 = ("person_id", "string", "p-1044"), ("person_id", "string", "p-2000")
_JSON = ("person_id.of", "string", "flat"), ("person_id", "json", '{"of": "path"}')
_STORED = (
    NewInference("both", at(1), [_P1, ("n", "int", "1"), _P2, ("n", "int", "9")]),
    NewInference("one", at(2), [_P2, ("n", "int", "5")]),
    NewInference("alike", at(3), _JSON),
)


async def store_repeated(api: Api) -> None:
    """Store the inference with one value first, so that the key is known with one."""
    for stored in reversed(_STORED):
        await api.store(stored)


async def test_each_value_is_found_counted_and_shown(api: Api) -> None:
    await store_repeated(api)
    found: list[tuple[str, set[str]]] = [
        ("person_id = 'p-1044'", {"both"}),
        ("person_id = 'p-2000'", {"both", "one"}),
        ("person_id <> 'p-2000'", {"both"}),
        ("NOT (person_id = 'p-1044')", {"one"}),
        ("n BETWEEN 4 AND 6", {"one"}),
        ("n > 0", {"both", "one"}),
        ("\"person_id.of\" = 'flat'", {"alike"}),
        ("\"person_id.of\" = 'path'", {"alike"}),
        ("sent(person_id)", {"both", "one", "alike"}),
    ]
    for filter_text, expected in found:
        body = {"filter": filter_text}
        assert sorted(await api.find_ids(**body)) == sorted(expected), filter_text
        count = await api.ask(f"{_M}/inferences/count", body)
        assert count["count"] == len(expected), filter_text
    for sort, expected_order in (("n", ["both", "one"]), ("-n", ["both", "one"])):
        assert (await api.find_ids(sort=sort, filter="n > 0")) == expected_order
    [item] = (
        await api.ask(f"{_M}/inferences/query", {"filter": "n = 9", "include": ["metadata"]})
    )["items"]
    values = [(entry["key"], entry["value"]) for entry in item["metadata"]]
    assert values == [("person_id", "p-1044"), ("n", "1"), ("person_id", "p-2000"), ("n", "9")]
    shown = await api.read(f"{_M}/inferences/both", metadata_as="object")
    assert shown["metadata"] == {"person_id": ["p-1044", "p-2000"], "n": [1, 9]}


async def test_each_value_is_held_and_erased(api: Api) -> None:
    await store_repeated(api)
    subject: dict[str, Any] = {"subject": {"key": "person_id", "value": "p-1044"}}
    estimate = await api.ask(f"{_M}/erasures", {**subject, "dry_run": True})
    assert estimate["inferences"] == 1
    hold = await place_hold(api, filter="person_id = 'p-2000'")
    requested = await request_erasure(api, subject)
    await api.run_retention()
    assert (await read_erasure(api, requested))["state"] == "partly_held"
    assert "both" in await api.find_ids()
    await release_hold(api, hold)
    await api.run_retention()
    erased = await read_erasure(api, requested)
    assert (erased["state"], erased["inferences"]) == ("deleted", 1)
    assert sorted(await api.find_ids()) == ["alike", "one"]
    by_path = await erase(api, {"subject": {"key": "person_id.of", "value": "path"}})
    assert by_path["inferences"] == 1
