"""Ground truth in bulk: each row is answered by name, nothing is lost, nothing is brought back."""

import json
from collections import Counter
from datetime import timedelta
from io import BytesIO
from typing import Any

import httpx
import pytest
from arro3.core import Array, DataType, Table
from arro3.io import write_parquet
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from sqlalchemy import func, select, update

from inference_store.erasure.log import new_key
from inference_store.index.tables import awaiting_truth, blob_reference, truth, truth_set
from inference_store.inference.events.event import Extras
from inference_store.truth.intake import ROWS
from tests.integration.retention.test_segments import count_with, read_versions
from tests.integration.stored_inferences import NewInference, at
from tests.servers.minio import S3

from .conftest import Api

pytestmark = pytest.mark.real_minio
_M = "/v1/models/model"
_HASH = "ab" * 32
NDJSON = "application/x-ndjson"
_NOTHING: dict[str, Any] = dict.fromkeys(
    ("matched", "awaiting", "ambiguous", "erased", "refused", "changed", "unchanged"), 0
) | {"problems": []}


async def load(
    api: Api, body: bytes, kind: str = NDJSON, *, path: str = _M, **query: Any
) -> httpx.Response:
    headers = {"Content-Type": kind}
    return await api.post(f"{path}/ground-truth", content=body, headers=headers, params=query)


async def load_rows(api: Api, *rows: Any, path: str = _M) -> dict[str, Any]:
    answer = await load(api, b"\n".join(json.dumps(row).encode() for row in rows), path=path)
    assert answer.status_code == 200, answer.text
    loaded: dict[str, Any] = answer.json()
    return loaded


async def count(api: Api, *tables: Any) -> list[int]:
    counts = [await api.fetch(select(func.count()).select_from(table)) for table in tables]
    return [number for [number] in counts]


async def find(api: Api, filter: str) -> str:
    return " ".join(await api.find_ids(filter=filter, sort="received_at"))


async def store(api: Api) -> None:
    same = Extras(data_hash=_HASH)
    await api.store(
        NewInference("a", at(0), [("frame", "int", 7)], aliases=("other/a",)),
        NewInference("b", at(1), [("frame", "string", "x8")], extras=same),
        NewInference("c", at(2), [("frame", "int", 9)], extras=same),
        NewInference("twice", at(3), [("frame", "int", 9)]),
        NewInference("twice", at(4)),
    )


async def test_each_row_is_answered_by_name(api: Api, minio_server: S3) -> None:
    await store(api)
    uid = NewInference("c", at(2)).uid
    rows = (
        {"inference_id": "other/a", "items": [{"label": "car", "box": [0, 0, 2, 3]}]},
        {"metadata.frame": "x8", "label": "lamp", "source": "file"},
        {"data_hash": _HASH.upper(), "label": "person"},
        {"uid": str(uid), "items": [], "source": "file"},
        {"inference_id": "twice", "label": "car"},
        {"metadata.frame": 9, "label": "car"},
        {"inference_id": "later", "label": "late-label"},
        {"inference_id": "a", "items": [{"box": [3, 3, 1, 1]}]},
        {"inference_id": "a", "uid": str(uid), "label": "x"},
        "no object",
    )
    loaded = await load_rows(api, *rows)
    problems = [(p["line"], p["outcome"], p["why"].partition(":")[0]) for p in loaded["problems"]]
    assert sorted(problems) == [
        (5, "ambiguous", "2 inferences have it"),
        (6, "ambiguous", "2 inferences have it"),
        (8, "refused", "box"),
        (9, "refused", "inference_id"),
        (10, "refused", "it is no JSON object"),
    ]
    counts = {"matched": 4, "awaiting": 1, "ambiguous": 2, "refused": 3, "changed": 5}
    assert loaded | {"problems": []} == _NOTHING | counts
    assert await find(api, "truth(label = 'car')") == "a"
    assert await find(api, "truth(label = 'person')") == "b c"
    assert await find(api, "truth(label = 'lamp' AND source = 'file')") == "b"
    assert await find(api, "count_truth(source = 'file') = 0") == "a c"
    # twice the same changes nothing, and puts nothing
    before = read_versions(minio_server, api.bucket)
    again = await load_rows(api, *rows)
    assert (again["changed"], again["unchanged"], again["awaiting"]) == (0, 5, 1)
    assert read_versions(minio_server, api.bucket) == before
    # what came first is joined when its inference arrives, and its document is deleted
    await api.run_retention()
    assert await count(api, awaiting_truth, truth_set) == [2, 5]
    # that of a datum waits on, for every inference that has it
    await api.store(
        NewInference("later", at(9)), NewInference("d", at(10), extras=Extras(data_hash=_HASH))
    )
    replaced = {"items": [{"label": "by-hand"}]}
    await api.call("PUT", f"{_M}/inferences/c/ground-truth", replaced)
    for _ in range(2):
        await api.run_retention()
    assert await find(api, "truth_label = 'late-label'") == "later"
    assert await find(api, "truth(label = 'person')") == "b d"
    assert await find(api, "truth(label = 'by-hand')") == "c"
    assert await count(api, awaiting_truth, truth_set, blob_reference) == [1, 7, 8]
    assert count_with(minio_server, api.bucket, b"late-label") == 1
    audited = await api.fetch("SELECT detail FROM audit WHERE action = 'ground_truth_changed'")
    assert audited[:2] == [{"sets": 5}, {"sets": 2}]
    # until one of them loses its set, which would come back
    assert (await api.delete(f"{_M}/inferences/d/ground-truth")).status_code == 204
    for _ in range(2):
        await api.run_retention()
    assert await count(api, awaiting_truth, truth_set, blob_reference) == [0, 6, 6]


async def test_an_inference_has_one_name_in_a_load(api: Api) -> None:
    """Rows that name it in two ways are all refused: none of them is the whole set."""
    await store(api)
    a, c = (NewInference(name, at(n)).uid for name, n in (("a", 0), ("c", 2)))
    rows = (
        {"inference_id": "a", "label": "car"},
        {"uid": str(a), "label": "lamp"},
        {"data_hash": _HASH, "label": "person"},
        {"uid": str(c), "label": "car"},
        {"metadata.frame": 7, "label": "car", "source": "file"},
        {"inference_id": "other/a", "items": [], "source": "file"},
        {"inference_id": "a", "items": [{"label": "bus"}], "source": "file"},
    )
    loaded = await load_rows(api, *rows)
    problems = [(each["line"], each["why"].partition(" is of")[0]) for each in loaded["problems"]]
    assert problems == [(1, "line 2"), (2, "line 1"), (3, "line 4"), (4, "line 3")]
    assert (loaded["refused"], loaded["matched"], loaded["changed"]) == (4, 3, 1)
    # a whole set replaces what stands above
    assert await find(api, "truth(label = 'bus')") == await find(api, "has_truth") == "a"
    assert await count(api, awaiting_truth) == [0]
    # a load is one, however many rows are written together
    apart = [{"inference_id": f"later-{n}", "label": "x"} for n in range(ROWS)]
    loaded = await load_rows(api, rows[0], *apart, rows[1])
    assert [(each["line"], each["outcome"]) for each in loaded["problems"]] == [
        (ROWS + 2, "refused")
    ]
    assert await find(api, "truth(label = 'car')") == "a"


async def test_one_load_is_for_several_models(api: Api) -> None:
    """A row says of which, or by its datum is for all that have it, or will."""
    same = Extras(data_hash=_HASH)
    await api.store(NewInference("a", at(0)))
    await api.store(NewInference("a", at(1), model_id="second", extras=same))
    await api.store(NewInference("b", at(2), model_id="third"))
    rows = (
        {"model_id": "model", "inference_id": "a", "label": "car"},
        {"model_id": "second", "inference_id": "later", "label": "car"},
        {"data_hash": _HASH, "label": "person"},
        {"inference_id": "a", "label": "car"},
        {"model_id": "nowhere", "inference_id": "a", "label": "car"},
        {"model_id": 7, "inference_id": "a", "label": "car"},
    )
    loaded = await load_rows(api, *rows, path="/v1")
    assert sorted((p["line"], p["why"]) for p in loaded.pop("problems")) == [
        (4, "model_id: say of which model it is"),
        (5, "model_id: there is no model 'nowhere'"),
        (6, "model_id: no model can have it"),
    ]
    counts = {"matched": 2, "awaiting": 1, "refused": 3, "changed": 2}
    assert loaded | {"problems": []} == _NOTHING | counts
    # the datum waits in each of the three models, and is joined with what has it later
    assert await count(api, awaiting_truth, truth_set) == [4, 2]
    await api.store(NewInference("c", at(3), model_id="third", extras=same))
    await api.run_retention()
    third = "/v1/models/third/inferences/c/ground-truth"
    assert (await api.call("GET", third))["sets"][0]["items"][0]["label"] == "person"
    assert (await load_rows(api, *rows, path="/v1"))["changed"] == 0
    audited = "SELECT model_id, detail FROM audit WHERE action = 'ground_truth_changed'"
    sets = Counter[str]()
    for model_id, detail in await api.fetch(audited):
        sets[model_id] += detail["sets"]
    assert sets == {"model": 2, "second": 3, "third": 1}
    # a path names the model of its rows
    [problem] = (await load_rows(api, rows[1]))["problems"]
    assert problem["why"] == "model_id: there is no model 'second'"
    assert (await load_rows(api, rows[0], rows[2]))["matched"] == 1


async def test_neighbours_in_a_segment_stay(api: Api, minio_server: S3) -> None:
    """What is erased, or replaced, of the documents of one request becomes zeros."""
    minio_server.client().set_bucket_versioning(api.bucket, VersioningConfig(ENABLED))
    api.retention["certificate_key"] = new_key().pem
    await store(api)
    rows = [{"inference_id": name, "text": f"planted-{name}"} for name in "abc"]
    rows.append({"inference_id": "a", "source": "file", "text": "planted-file"})
    assert (await load_rows(api, *rows))["changed"] == 4

    def list_planted() -> list[int]:
        names = ("a", "b", "c", "file")
        return [count_with(minio_server, api.bucket, f"planted-{n}".encode()) for n in names]

    assert list_planted() == [1, 1, 1, 1]
    replaced = {"items": [{"text": "new"}]}
    await api.call("PUT", f"{_M}/inferences/a/ground-truth", replaced)
    await api.run_retention()
    assert list_planted() == [0, 1, 1, 1]
    assert (await api.delete(f"{_M}/inferences/b")).status_code == 202
    await api.run_retention()
    assert list_planted() == [0, 0, 1, 1]
    for name, text in (("c", "planted-c"), ("a", "planted-file")):
        shown = await api.read(f"{_M}/inferences/{name}/ground-truth")
        assert text in {item["text"] for one in shown["sets"] for item in one["items"]}
    for name in "ac":
        assert (await api.delete(f"{_M}/inferences/{name}")).status_code == 202
    await api.run_retention()
    assert list_planted() == [0, 0, 0, 0]
    assert [n for n in read_versions(minio_server, api.bucket) if "ground-truth" in n] == []
    states = {one["state"] for one in (await api.read("/v1/erasures"))["items"]}
    assert (states, await count(api, truth, blob_reference)) == ({"certified"}, [0, 0])


async def test_nothing_erased_comes_back(api: Api, minio_server: S3) -> None:
    await store(api)
    uid = NewInference("a", at(0)).uid
    assert (await load_rows(api, {"inference_id": "a", "text": "planted-1"}))["changed"] == 1
    assert (await api.delete(f"{_M}/inferences/a")).status_code == 202
    by_name, by_uid = {"inference_id": "a", "label": "x"}, {"uid": f"uid:{uid}", "label": "x"}
    going = await load_rows(api, by_name, by_uid)
    assert (going["erased"], [p["outcome"] for p in going["problems"]]) == (2, ["erased"] * 2)
    await api.run_retention()
    gone = await load_rows(api, by_name, by_uid)
    assert (gone["erased"], gone["awaiting"]) == (1, 1)
    await api.run_retention()
    assert await count(api, truth_set, truth, awaiting_truth) == [0, 0, 1]
    nothing = await api.delete(f"{_M}/ground-truth")
    assert (nothing.status_code, await count(api, awaiting_truth)) == (204, [0])
    assert (await load_rows(api, by_name))["awaiting"] == 1
    # what waited for too long goes, with its bytes
    passed = update(awaiting_truth).values(until=func.now() - timedelta(days=1))
    async with api.engine.begin() as connection:
        await connection.execute(passed)
    for _ in range(2):
        await api.run_retention()
    assert await count(api, awaiting_truth, blob_reference) == [0, 0]
    assert [n for n in read_versions(minio_server, api.bucket) if "ground-truth" in n] == []


async def test_a_value_of_metadata_may_be_spelt_otherwise(api: Api) -> None:
    metadata = [("frame", "int", 7), ("when", "timestamp", at(0).isoformat())]
    await api.store(NewInference("a", at(0), metadata))
    values = [("frame", "7"), ("frame", "7.0"), ("when", at(0).isoformat())]
    values += ("frame", "1e99999999"), ("when", at(1).isoformat())
    rows = [
        {f"metadata.{key}": value, "label": "car", "source": f"source-{n}"}
        for n, (key, value) in enumerate(values)
    ]
    loaded = await load_rows(api, *rows)
    assert loaded == _NOTHING | {"matched": 3, "awaiting": 2, "changed": 3}


async def test_what_waits_goes_with_what_an_erasure_names(api: Api, minio_server: S3) -> None:
    """Before the erasure ends: its rows, and its bytes in every version."""
    minio_server.client().set_bucket_versioning(api.bucket, VersioningConfig(ENABLED))
    api.retention["certificate_key"] = new_key().pem
    same = Extras(data_hash=_HASH)
    await api.store(NewInference("a", at(0), [("person", "int", 7)], extras=same))
    uid = NewInference("gone", at(8)).uid
    rows = (
        {"metadata.person": "8.0", "source": "file"},
        {"metadata.person": "8"},
        {"metadata.other": "8"},
        {"inference_id": "late"},
        {"uid": str(uid)},
        {"data_hash": _HASH},
    )
    planted = [{**row, "text": f"planted-{n}"} for n, row in enumerate(rows)]
    loaded = await load_rows(api, *planted)
    assert (loaded["awaiting"], loaded["changed"]) == (5, 1)

    def list_planted() -> list[int]:
        names = [f"planted-{n}".encode() for n in range(len(rows))]
        return [count_with(minio_server, api.bucket, name) for name in names]

    assert list_planted() == [1] * 5 + [2]
    await api.call("POST", "/v1/erasures", {"subject": {"key": "person", "value": "8"}})
    await api.run_retention()
    [own] = (await api.read("/v1/erasures"))["items"]
    assert (own["state"], list_planted()) == ("certified", [0, 0, 1, 1, 1, 2])
    named = {"inference_ids": ["late", f"uid:{uid}", "a"], "model_ids": ["model"]}
    await api.call("POST", "/v1/erasures", named)
    await api.run_retention()
    assert list_planted() == [0, 0, 1, 0, 0, 0]
    assert await count(api, awaiting_truth, blob_reference) == [1, 1]
    erasures = (await api.read("/v1/erasures"))["items"]
    assert {one["state"] for one in erasures} == {"certified"}
    # a DELETE by id is the same erasure
    assert (await load_rows(api, {"inference_id": "b", "text": "planted-0"}))["awaiting"] == 1
    await api.store(NewInference("b", at(1)))
    assert (await api.delete(f"{_M}/inferences/b")).status_code == 202
    await api.run_retention()
    assert list_planted() == [0, 0, 1, 0, 0, 0]
    assert await count(api, awaiting_truth, blob_reference) == [1, 1]
    assert (await api.read("/v1/erasures"))["items"][0]["asked"] == {"ids": 1}


_CSV = """\ufeffimage,class,xmin,ymin,xmax,ymax,text,value,note
a,car,0,0,10,10,,,x
a,lamp,,,,,,,
"b",,,,,,"two
lines",1.50,
c,,,,,,,,
a,bus,,,,,,,
"""


@pytest.mark.parametrize("kind", ["text/csv", "application/vnd.apache.parquet"])
async def test_columns(api: Api, kind: str) -> None:
    """Rows of one inference that follow each other are one set; those further down are refused. A
    row of empty columns says nothing, and replaces no set."""
    await store(api)
    body = _CSV.encode()
    if kind != "text/csv":
        names = ["image", "class", "xmin", "ymin", "xmax", "ymax", "text", "value"]
        rows: list[tuple[Any, ...]] = [
            ("a", "car", 0.0, 0.0, 10.0, 10.0, None, None),
            ("a", "lamp", *[None] * 6),
            ("b", None, *[None] * 4, "two\nlines", 1.5),
            ("c", *[None] * 7),
            ("a", "bus", *[None] * 6),
        ]
        kinds = [DataType.utf8()] * 2 + [DataType.float64()] * 4
        kinds += DataType.utf8(), DataType.float64()
        columns = [Array(v, k) for v, k in zip(zip(*rows, strict=True), kinds, strict=True)]
        write_parquet(Table.from_arrays(columns, names=names), file := BytesIO())
        body = file.getvalue()
    mapping = ["inference_id=image", "label=class"]
    answer = await load(api, body, kind, columns=mapping)
    assert answer.status_code == 200, answer.text
    loaded = answer.json()
    assert [problem["outcome"] for problem in loaded.pop("problems")] == ["refused"] * 2
    counts = {"matched": 2, "changed": 2, "refused": 2}
    assert loaded | {"problems": []} == _NOTHING | counts
    assert await find(api, "has_truth") == "a b"
    assert await find(api, "truth_label = 'car'") == "a"
    assert await find(api, "truth(value = 1.5 AND text LIKE 'two%')") == "b"
    wrong = await load(api, body, kind, columns=["labl=class"])
    assert (wrong.status_code, wrong.json()["errors"][0]["known"][0]) == (422, "label")
    for column, why in (
        ("label", "'label' is not OURS="),
        ("text=klass", "the file has no column"),
        ("inference_id=class", "'inference_id=class' names again"),
        ("label=class", "'label=class' names again"),
    ):
        query: dict[str, Any] = {
            "columns": [column] if "again" not in why else ["label=class", column]
        }
        refused = (await load(api, body, kind, **query)).json()["errors"][0]
        assert (refused["path"], refused["message"][: len(why)]) == ("query.columns", why)
    assert (await load(api, b"\xff\xfe\x00", kind)).status_code == 422
    assert (await load(api, body, "text/plain")).status_code == 422
    headers = {"Content-Type": kind, "Content-Encoding": "gzip"}
    packed = await api.post(f"{_M}/ground-truth", content=b"", headers=headers)
    assert (packed.status_code, "gzip" in packed.json()["detail"]) == (415, True)
    assert (await api.post("/v1/models/none/ground-truth", content=b"")).status_code == 404
