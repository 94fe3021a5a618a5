"""Ground truth is set, read, replaced and deleted, in the bucket too, and goes with inferences."""

from typing import Any

import httpx
import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import func, select

from inference_store.erasure.log import new_key
from inference_store.index import registrations
from inference_store.index.tables import audit, blob_reference, model_label, truth, truth_set
from inference_store.query.cql2 import parse_text
from inference_store.query.filters.check import check
from inference_store.query.filters.names import KnownKeys
from inference_store.query.unstored import evaluate
from tests.integration.retention.test_segments import count_with
from tests.integration.stored_inferences import NewInference, at, make_indexable
from tests.servers.minio import S3

from .conftest import Api
from .people import place_hold, release_hold

pytestmark = pytest.mark.real_minio
_M = "/v1/models/model"
_BOX = {"label": "person", "box": [1, 2, 11, 22], "text": "planted-4711", "value": 1.25}


def make_path(inference_id: str) -> str:
    return f"{_M}/inferences/{inference_id}/ground-truth"


async def put(api: Api, inference_id: str, *items: Any, **more: Any) -> httpx.Response:
    headers = more.pop("headers", {})
    body = {"items": list(items), **more}
    return await api.put(make_path(inference_id), json=body, headers=headers)


async def count(api: Api, *tables: Any) -> list[int]:
    counts = [await api.fetch(select(func.count()).select_from(table)) for table in tables]
    return [number for [number] in counts]


async def test_set_read_replaced_and_deleted(api: Api, minio_server: S3) -> None:
    await api.store(NewInference("one", predictions=[("person", 0.9)]), NewInference("two", at(1)))
    assert await api.read(make_path("one")) == {
        "uid": str(NewInference("one").uid),
        "sets": [],
    }
    first = await put(api, "one", _BOX, {"label": "lamp"})
    assert first.status_code == 200, first.text
    shown = first.json()
    assert (shown["source"], shown["complete"], shown["revision"]) == ("human", True, 1)
    assert shown["items"] == [
        {"label": "person", "box": [1, 2, 11, 22], "text": "planted-4711", "value": 1.25},
        {"label": "lamp", "box": None, "text": None, "value": None},
    ]
    tag = first.headers["ETag"]
    assert (tag, (await api.get(make_path("one"))).headers["ETag"]) == (
        *(f'"1@{shown["at"]}"', tag),
    )
    # the same again changes nothing, and puts nothing
    objects = count_with(minio_server, api.bucket, b"planted-4711")
    again = await put(api, "one", _BOX, {"label": "lamp"})
    assert (again.json(), count_with(minio_server, api.bucket, b"planted-4711")) == (shown, objects)
    assert objects == 1
    # another source has a set of its own; a set without items says that there is nothing
    nothing = await put(api, "one", source="inspector", complete=False)
    assert nothing.json()["items"] == []
    sets = (await api.read(make_path("one")))["sets"]
    assert [one["source"] for one in sets] == ["human", "inspector"]
    # replaced whole
    late = await put(api, "one", {"label": "car"}, headers={"If-Match": '"0"'})
    assert late.status_code == 412
    replaced = await put(api, "one", {"label": "car"}, headers={"If-Match": tag})
    assert (replaced.json()["revision"], len(replaced.json()["items"])) == (2, 1)
    assert await count(api, truth_set, truth, blob_reference) == [2, 1, 3]
    # the old bytes go
    await api.run_retention()
    assert await count(api, truth_set, truth, blob_reference) == [2, 1, 2]
    assert count_with(minio_server, api.bucket, b"planted-4711") == 0
    assert count_with(minio_server, api.bucket, b'"label":"car"') == 1
    [erasure] = (await api.read("/v1/erasures"))["items"]
    assert (erasure["cause"], erasure["scope"], erasure["state"]) == (
        "replaced",
        "truth",
        "deleted",
    )
    # deleted
    assert (await api.delete(make_path("one"), params={"source": "nobody"})).status_code == 404
    assert (await api.delete(make_path("one"))).status_code == 204
    await api.run_retention()
    assert [one["source"] for one in (await api.read(make_path("one")))["sets"]] == ["inspector"]
    assert count_with(minio_server, api.bucket, b'"label":"car"') == 0
    # a new set does not match the ETag of the one that was deleted
    created = await put(api, "one", _BOX, {"label": "lamp"}, headers={"If-Match": '"0"'})
    assert (created.status_code, created.json()["revision"]) == (200, 1)
    for late in (
        await put(api, "one", headers={"If-Match": tag}),
        await api.delete(make_path("one"), headers={"If-Match": tag}),
    ):
        assert late.status_code == 412
    headers = {"If-Match": created.headers["ETag"]}
    assert (await api.delete(make_path("one"), headers=headers)).status_code == 204
    noted = await api.fetch(
        select(audit.c.detail).where(audit.c.action == "ground_truth_changed").order_by(audit.c.id)
    )
    assert noted == [
        {"source": "human", "revision": 1},
        {"source": "inspector", "revision": 1},
        {"source": "human", "revision": 2},
        *({"source": "human", "revision": revision} for revision in (None, 1, None)),
    ]


FILTERS = {
    "has_truth": "a b c d",
    "NOT has_truth": "e",
    "truth(label = 'car')": "a b",
    "NOT truth(label = 'car')": "c d",
    "truth(label = 'car' AND area > 50)": "a",
    "truth(source = 'inspector')": "b",
    "truth()": "a b c",
    "count_truth() = 0": "d",
    "count_truth(label = 'car') >= 1": "a b",
    "count_truth(label = 'car') = 2": "a",
    "count_truth() <> count_predictions()": "a b c",
    "truth(label = 'car') IS NULL": "e",
    "truth_label = 'car'": "a",
    "truth_label IN ('lamp', 'person')": "b c",
    "truth_label <> top_label": "b",
    "truth_label = top_label": "a",
    "truth_label IS NULL": "d e",
    "truth(text LIKE 'a l%' OR value > 2)": "c",
    "has_truth = FALSE OR truth_label = 'person'": "c e",
    "prediction(label = 'car') AND NOT truth(label = 'car')": "",
}


@pytest.mark.parametrize("distinct", [False, True])
async def test_filters(api: Api, distinct: bool) -> None:
    """`distinct`: beside another condition, so that each inference is looked at by itself."""
    predicted = {"a": [("car", 0.9)], "b": [("person", 0.4)]}
    await api.store(
        *(
            NewInference(name, at(n), predictions=predicted.get(name, ()))
            for n, name in enumerate("abcde")
        )
    )
    await put(api, "a", {"label": "car", "box": [0, 0, 10, 10]}, {"label": "car"})
    await put(api, "b", {"label": "car"})
    await put(api, "b", {"label": "lamp"}, source="inspector")
    await put(api, "c", {"text": "a lamp"}, {"label": "person"}, {"value": 2.5})
    await put(api, "d", source="inspector")
    for text, names in FILTERS.items():
        whole = f"({text}) AND NOT inference_id = 'x'" if distinct else text
        body = {"filter": whole, "sort": "received_at"}
        assert " ".join(await api.find_ids(**body)) == names, whole
        count = await api.ask(f"{_M}/inferences/count", {"filter": whole})
        assert count["count"] == len(names.split()), whole
    refused = await api.post(f"{_M}/inferences/count", json={"filter": "truth(score > 1)"})
    assert (refused.status_code, "inside truth(…)" in refused.json()["detail"]) == (422, True)
    by = {"group_by": ["truth_label", "top_label"], "measures": ["count"]}
    groups = (await api.ask(f"{_M}/inferences/aggregate", by))["groups"]
    pairs = {(g["key"]["truth_label"], g["key"]["top_label"]) for g in groups}
    assert pairs == {("car", "car"), ("lamp", "person"), ("person", None), (None, None)}
    refused = await api.post(f"{_M}/inferences/query", json={"sort": "truth_label"})
    assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, "sort")


async def test_beside_inferences(api: Api) -> None:
    await api.store(NewInference("one"), NewInference("two", at(1)))
    await put(api, "one", _BOX)
    shown = (await api.read(make_path("one")))["sets"]
    for name in ("include", "fields"):
        items = (await api.ask(f"{_M}/inferences/query", {name: ["ground_truth"]}))["items"]
        assert [item["ground_truth"] for item in items] == [[], shown]
    path = f"{_M}/inferences/one?include=ground_truth"
    assert (await api.read(path))["ground_truth"] == shown
    assert "ground_truth" not in await api.read(f"{_M}/inferences/one")
    for kind in ("application/x-ndjson", "text/csv"):
        body = {"fields": ["ground_truth"], "filter": "has_truth"}
        lines = await api.post(f"{_M}/inferences/query", json=body, headers={"Accept": kind})
        assert lines.text.count("planted-4711") == 1, lines.text


async def test_nothing_is_true_of_what_arrives(api: Api) -> None:
    arriving = NewInference("new", predictions=[("car", 0.9)])
    await api.store(NewInference("one"))
    async with api.engine.connect() as connection:
        registration = (await registrations.find_by_ids(connection, ["model"]))["model"]
        words = "has_truth", "truth(label = 'car')", "count_truth() = 0", "truth_label = 'car'"
        predicates = [check(parse_text(word), KnownKeys()).predicate for word in words]
        item = make_indexable(arriving, registration)
        assert await evaluate(connection, [item], predicates) == [[False, None, None, None]]


async def test_a_hold_goes_on_matching(api: Api) -> None:
    await api.store(NewInference("one"), NewInference("two", at(1)))
    for name in ("one", "two"):
        assert (await put(api, name, {"label": "car"})).status_code == 200
    await place_hold(api, "truth(label = 'car') AND inference_id = 'one'")
    refused = await put(api, "one", {"label": "lamp"})
    assert (refused.status_code, refused.json()["type"][-5:]) == (409, "#held")
    assert (await put(api, "one", {"label": "lamp"}, {"label": "car"})).status_code == 200
    await place_hold(api, "has_truth AND inference_id = 'two'")
    assert (await api.delete(make_path("two"))).status_code == 409
    assert (await put(api, "two", {"label": "lamp"})).status_code == 200
    assert await api.find_ids(filter="truth(label = 'lamp') AND truth_label = 'lamp'") == [
        *("two", "one")
    ]


async def test_refused_by_name(api: Api) -> None:
    await api.store(*(NewInference("twice", at(n)) for n in range(2)), NewInference("one", at(9)))
    await api.store(NewInference("other", at(3), model_id="other"))
    ambiguous = await put(api, "twice", {"label": "a"})
    assert (ambiguous.status_code, "uid:" in ambiguous.json()["detail"]) == (409, True)
    assert (await put(api, "other", {"label": "a"})).status_code == 404
    for wrong, field in (
        ({"items": [{}]}, "items[0].label"),
        ({"items": [{"box": [5, 5, 1, 9]}]}, "items[0].box"),
        ({"items": [{"box": [5, 5, 1]}]}, "items[0].box"),
        ({"items": [], "source": ""}, "source"),
        ({}, "items"),
    ):
        answer = await api.put(make_path("one"), json=wrong)
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, field)
    uid = NewInference("one", at(9)).uid
    assert (await put(api, "one", {"label": "a"})).status_code == 200
    assert (await api.delete(f"{_M}/inferences/one")).status_code == 202
    going = await put(api, f"uid:{uid}", {"label": "b"})
    assert (going.status_code, "being erased" in going.json()["detail"]) == (410, True)
    await api.run_retention()
    gone = await put(api, f"uid:{uid}", {"label": "b"})
    assert (gone.status_code, "was erased" in gone.json()["detail"]) == (410, True)
    assert await count(api, truth_set, truth, blob_reference, model_label) == [0, 0, 0, 0]


@pytest.mark.parametrize("versions", [False, True])
async def test_erased_with_its_inference_and_kept_by_a_hold(
    api: Api, minio_server: S3, versions: bool
) -> None:
    if versions:
        minio_server.client().set_bucket_versioning(api.bucket, VersioningConfig(ENABLED))
    api.retention["certificate_key"] = new_key().pem
    await api.store(*(NewInference(name, at(n)) for n, name in enumerate(("one", "two"))))
    hold = await place_hold(api, "inference_id = 'one'")
    for name in ("one", "two"):
        assert (await put(api, name, _BOX)).status_code == 200
    # replaced while it is held: the old bytes stay as long as the hold
    await put(api, "one", {"label": "car"})
    await api.run_retention()
    assert count_with(minio_server, api.bucket, b"planted-4711") == 2
    requested = (
        await api.ask(
            f"{_M}/erasures",
            {"filter": "received_at > TIMESTAMP('2000-01-01T00:00:00Z')"},
            status=202,
        )
    )["id"]
    await api.run_retention()
    erasure = await api.read(f"/v1/erasures/{requested}")
    assert (erasure["state"], erasure["rows"]["truth"]) == ("partly_held", 1)
    assert count_with(minio_server, api.bucket, b"planted-4711") == 1
    assert len((await api.read(make_path("one")))["sets"]) == 1
    await release_hold(api, hold)
    await api.run_retention()
    await api.run_retention()
    states = [one["state"] for one in (await api.read("/v1/erasures"))["items"]]
    assert states == ["certified"] * 2, states
    for value in (b"planted-4711", b'"label":"car"'):
        assert count_with(minio_server, api.bucket, value) == 0
    assert await count(api, truth_set, truth, blob_reference, model_label) == [0, 0, 0, 0]
