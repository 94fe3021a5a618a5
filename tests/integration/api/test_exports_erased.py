"""What an erasure takes of an export: gone from the bucket, and told to whoever exported."""

from typing import Any

import pytest

from inference_store.export.part_formats import PART_FORMATS
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api
from .people import ERASURES, erase, list_keys, list_parts, read_export, request_export

PLANTED = "planted-5f2b"
OF_PLANTED = {"filter": f"who = '{PLANTED}'"}


# every other one is of the person
INFERENCES = [
    NewInference(str(n), at(n), [("who", "string", PLANTED if n % 2 else "other")])
    for n in range(6)
]


@pytest.fixture(autouse=True)
async def stored(api: Api) -> None:
    """Store six inferences, of which a part has four."""
    api.retention["export_part_inferences"] = 4
    await api.store(*INFERENCES)


async def list_erased(api: Api, export: dict[str, Any], limit: int = 10) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    following: str | None = ""
    while following is not None:
        page = await api.read(f"/v1/exports/{export['id']}/erased?limit={limit}{following}")
        assert len(page["items"]) <= limit
        items += page["items"]
        following = None if page["next"] is None else f"&cursor={page['next']}"
    return items


async def test_a_person_is_erased_from_exports_of_every_format(api: Api) -> None:
    exports = {name: await request_export(api, format=name) for name in PART_FORMATS}
    await api.run_retention()
    before = {name: await list_parts(api, export) for name, export in exports.items()}
    for name, parts in before.items():
        assert [part["rows"] for part in parts] == [4, 2], name
        assert await list_erased(api, exports[name]) == [], name
    erasure = (await erase(api, OF_PLANTED))["id"]
    uids = [str(inference.uid) for inference in INFERENCES]
    assert not [key for key in list_keys(api) if key.startswith("exports/")]
    for name, export in exports.items():
        stale = await read_export(api, export)
        counts = ("state", "rows", "members", "parts_deleted", "inferences_deleted")
        assert [stale[each] for each in counts] == ["stale", 0, 6, 2, 6], name
        parts = await list_parts(api, export)
        assert [(part["state"], part["url"]) for part in parts] == [("stale", None)] * 2, name
        for limit in (1, 2, 10):
            erased = await list_erased(api, export, limit)
            assert [item["uid"] for item in erased] == uids[1::2], (name, limit)
        path = f"/v1/exports/{export['id']}/erased?cursor="
        assert (await api.read(path + erased[-1]["cursor"]))["items"] == []
        assert (await api.read(path + erased[0]["cursor"]))["items"] == erased[1:]
        assert {item["erasure"] for item in erased} == {erasure}
        assert {(item["scope"], item["inferences"]) for item in erased} == {("inference", 1)}


async def test_a_stale_export_is_started_again_as_another_one(api: Api) -> None:
    stale = await request_export(api, format="jsonl", expires_in="P2D")
    restart = f"/v1/exports/{stale['id']}/restart"
    assert "wait until it has ended" in (await api.ask(restart, {}, status=409))["detail"]
    await api.run_retention()
    await erase(api, {"inference_ids": ["5"]})
    assert [part["state"] for part in await list_parts(api, stale)] == ["written", "stale"]
    gone = await api.read(f"/v1/exports/{stale['id']}/parts/2", status=410)
    assert f"POST {restart}" in gone["detail"]
    again = await api.ask(restart, {}, status=202)
    await api.run_retention()
    first, second = await read_export(api, stale), await read_export(api, again)
    counts = ("state", "rows", "members", "parts_deleted", "inferences_deleted")
    assert [first[each] for each in counts] == ["stale", 4, 6, 1, 2]
    assert [second[each] for each in counts] == ["done", 5, 5, 0, 0]
    for name in ("format", "filter", "until", "include", "blobs"):
        assert first[name] == second[name], name
    assert [part["rows"] for part in await list_parts(api, again)] == [4, 1]


async def test_dry_runs_and_previews_say_in_how_many_exports_it_is(api: Api) -> None:
    both = [
        (await request_export(api, filter=filter))["id"]
        for filter in ("who = 'other'", "who LIKE '%'")
    ]
    await api.run_retention()

    async def foretell(body: dict[str, Any]) -> tuple[int, list[str], bool]:
        dry = await api.ask(ERASURES, body | {"dry_run": True})
        return dry["exports"], dry["export_ids"], dry["partial"]

    assert await foretell(OF_PLANTED) == (1, [both[1]], False)
    assert await foretell({"inference_ids": ["4"]}) == (2, sorted(both), False)
    assert await foretell({"filter": "who = 'nobody'"}) == (0, [], False)
    rules = {"rules": [OF_PLANTED | {"keep_inference": "P0D"}]}
    path = "/v1/models/model/retention-policy/preview"
    lost = (await api.ask(path, rules))["would_delete"]
    assert (lost["exports"], lost["partial"]) == (1, False)
    hold = {"name": "a hold", "reason": "a file", "model_id": "model", "filter": "who LIKE '%'"}
    await api.ask("/v1/holds", hold, status=201)
    assert await foretell({"inference_ids": ["4"]}) == (0, [], False)
    assert (await api.ask(path, rules))["would_delete"]["exports"] == 0


async def test_uids_are_forgotten_with_the_tombstones(api: Api) -> None:
    export = await request_export(api, format="jsonl")
    await api.run_retention()
    await erase(api, OF_PLANTED)
    page = await api.read(f"/v1/exports/{export['id']}/erased?limit=1")
    await api.execute("UPDATE export_erased SET erased_at = erased_at - interval '30 days'")
    await api.run_retention(is_due=True)
    forgotten = await list_erased(api, export)
    assert [(item["uid"], item["inferences"]) for item in forgotten] == [(None, 2), (None, 1)]
    later = await api.read(f"/v1/exports/{export['id']}/erased?cursor={page['next']}")
    assert [item["inferences"] for item in later["items"]] == [1]


async def test_exports_of_a_removed_model_go_with_it(api: Api) -> None:
    export = await request_export(api)
    await api.run_retention()
    await list_parts(api, export)
    await erase(api, {"inference_ids": [str(n) for n in range(6)]})
    await api.call("DELETE", "/v1/models/model", status=204)
    await api.read(f"/v1/exports/{export['id']}", status=404)
    assert (await api.read("/v1/exports"))["items"] == []
    await api.run_retention()
    await api.run_retention(is_due=True)
    assert list_keys(api) == []
    for table in ("export_job", "export_part", "export_download", "export_erased"):
        assert await api.fetch(f"SELECT count(*) FROM {table}") == [0], table


async def test_what_lost_its_filter_is_not_started_again_and_other_refusals(api: Api) -> None:
    await api.read("/v1/exports/00000000-0000-4000-8000-000000000000/erased", status=404)
    export = await request_export(api)
    damaged = await api.read(f"/v1/exports/{export['id']}/erased?cursor=x", status=422)
    assert damaged["type"].endswith("#invalid-cursor")
    export = await request_export(api, **OF_PLANTED)
    await api.run_retention()
    await erase(api, {"subject": {"key": "who", "type": "string", "value": PLANTED}})
    refused = await api.ask(f"/v1/exports/{export['id']}/restart", {}, status=409)
    assert "the filter of this export is lost. Request a new export" in refused["detail"]
