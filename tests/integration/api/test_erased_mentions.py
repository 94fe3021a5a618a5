"""An erasure of a subject redacts what mentions it about its own models; of all models, the rest.

Else a key that may erase from one model could change records about others, and learn from the
counts whether a word stands in them. Holds are redacted once they are over, and remain.
"""

from typing import Any

import pytest

from inference_store.erasure.log import new_key

from .conftest import Api
from .people import ACROSS, ERASURES, SUBJECT, erase, place_hold, release_hold, request_erasure

FILTER = "person = 'ann'"
KEPT = {"keep_input": "P9Y", "keep_inference": "P9Y"}
OWNERS = {"model": "model", "other": "other", None: "everything"}
# Tables that have a mention, with a query for the owners of the rows that still have one.
QUERIES = {
    "saved_view": "SELECT name FROM saved_view WHERE filter LIKE '%ann%'",
    "hold": "SELECT name FROM hold WHERE filter LIKE '%ann%'",
    "erasure": "SELECT array_to_string(array_agg(m.model_id ORDER BY m.model_id), '+')"
    " FROM erasure JOIN erasure_model e ON e.erasure = erasure.id JOIN registration m"
    " ON m.model = e.model WHERE asked::text LIKE '%ann%' GROUP BY erasure.id",
    "policy_version": "SELECT subject FROM policy_version WHERE document LIKE '%ann%'",
    "export_job": "SELECT model_id FROM export_job JOIN registration USING (model)"
    " WHERE document::text LIKE '%ann%'",
    "audit": "SELECT coalesce(model_id, 'everything') FROM audit WHERE detail::text LIKE '%ann%'",
}
LEFT = {
    "saved_view": {"other"},
    "hold": {"other", "everything"},
    "erasure": {"other", "model+other"},
    "policy_version": {"other", ""},
    "export_job": {"other"},
    "audit": {"other", "everything"},
}


@pytest.fixture
async def mentions(api: Api, people: None) -> None:  # noqa: ARG001
    """Mention ann in each kind of record, about each model and about everything."""
    for model, name in OWNERS.items():
        prefix = "/v1" if model is None else f"/v1/models/{model}"
        for rules in ([{"filter": FILTER, **KEPT}, KEPT], [KEPT]):
            await api.call("PUT", f"{prefix}/retention-policy", {"rules": rules})
        await release_hold(api, await place_hold(api, FILTER, name=name, model_id=model))
        erasure = await request_erasure(api, {"filter": FILTER}, f"{prefix}/erasures")
        await api.ask(f"{ACROSS}/{erasure['id']}/cancel", None, status=202)
        if model is not None:
            view = {"name": name, "filter": FILTER, "shared": "project", "model_id": model}
            await api.ask("/v1/views", view, status=201)
            await api.ask(f"{prefix}/exports", {"filter": FILTER}, status=202)


async def find_mentions(api: Api) -> dict[str, set[str]]:
    return {table: set(await api.fetch(query)) for table, query in QUERIES.items()}


@pytest.mark.usefixtures("mentions")
async def test_mentions_about_other_models_stay_unless_all_are_erased(api: Api) -> None:
    before = await find_mentions(api)
    assert {table: owners - LEFT[table] for table, owners in before.items()} == {
        table: {"model"} for table in QUERIES
    }
    erasure = await erase(api, SUBJECT, ERASURES)
    assert erasure["state"] == "deleted"
    assert await find_mentions(api) == LEFT
    exports = (await api.read("/v1/exports"))["items"]
    states = {export["model_id"]: (export["state"], export["erased_by"]) for export in exports}
    # it was still to search by its filter
    assert states == {"model": ("failed", erasure["id"]), "other": ("done", None)}
    [failed] = [export for export in exports if export["model_id"] == "model"]
    assert failed["filter"] is None
    assert "request it again" in failed["error"]
    assert (await erase(api, SUBJECT, ACROSS))["state"] == "deleted"
    assert await find_mentions(api) == {table: set() for table in QUERIES}


KEY = new_key()


@pytest.fixture
def signing(api: Api, people: None) -> None:  # noqa: ARG001
    api.retention["certificate_key"] = KEY.pem


async def read_hold(api: Api, hold: str) -> dict[str, Any]:
    """Return a hold, with the documents of its revisions in `history`."""
    current, history = [await api.read(f"/v1/holds/{hold}{path}") for path in ("", "/history")]
    return dict(current, history=[revision["document"] for revision in history["items"]])


async def count_mentions_in_holds(api: Api) -> int:
    as_text = "SELECT {0}::text AS document FROM {0}"
    both = " UNION ALL ".join(as_text.format(table) for table in ("hold", "hold_change"))
    [number] = await api.fetch(rf"SELECT count(*) FROM ({both}) AS t WHERE document ~* '\mann\M'")
    return int(number)


@pytest.mark.usefixtures("signing")
async def test_redacts_released_holds_and_keeps_them(api: Api) -> None:
    of_ann = await place_hold(api, "person = 'ann'", name="case of ann")
    of_ids = await place_hold(api, reason="ann asked", inference_ids=["i0", "i2"])
    of_bob = await place_hold(api, "person = 'bob'", name="annual")
    for hold in (of_ann, of_ids):
        await release_hold(api, hold)
    await release_hold(api, of_bob, reason="person ann has agreed")
    before = await read_hold(api, of_ann)
    assert (await erase(api, SUBJECT))["state"] == "certified"
    assert await count_mentions_in_holds(api) == 0
    after = await read_hold(api, of_ann)
    hashed = {
        name: f"erased:{KEY.keyed_hash('hold', before[name].encode()).hex()}"
        for name in ("name", "reason")
    }
    assert {name: after[name] for name in hashed} == hashed
    assert after["filter"].startswith("erased:")
    assert after["history"][0]["filter"] == after["filter"]
    same = ("id", "model_id", "state", "placed_by", "placed_at", "released_by", "release_reason")
    assert [after[name] for name in same] == [before[name] for name in same]
    ids = (await read_hold(api, of_ids))["inference_ids"]
    assert [id.startswith("erased:") for id in ids] == [True, True]
    bob = await read_hold(api, of_bob)
    assert (bob["name"], bob["filter"]) == ("annual", "metadata.person = 'bob'")
    assert bob["release_reason"].startswith("erased:")
    refused = await api.read(f"/v1/holds/{of_ann}/held", status=409)
    assert "an erasure took its filter" in str(refused)


@pytest.mark.usefixtures("signing")
async def test_redacts_hold_in_force_after_its_release(api: Api) -> None:
    """Without a key for certificates there is none to hash with either."""
    api.retention["certificate_key"] = None
    hold = await place_hold(api, "person = 'bob'", reason="ann against bob")
    assert (await erase(api, SUBJECT))["state"] == "deleted"
    still = await read_hold(api, hold)
    assert (still["reason"], still["state"]) == ("ann against bob", "in_force")
    assert (await api.read(f"/v1/holds/{hold}/held"))["inferences"] == 3
    await release_hold(api, hold)
    await api.run_retention()
    assert await count_mentions_in_holds(api) == 0
    gone = await read_hold(api, hold)
    assert [gone[name] for name in ("name", "reason", "filter")] == ["erased"] * 3
    assert gone["release_reason"] == "over"


@pytest.mark.usefixtures("signing")
async def test_redacts_only_revisions_that_mention_the_subject(api: Api) -> None:
    hold = await place_hold(api, "person = 'ann' AND n > 100")
    change = {"name": "b", "reason": "c", "model_id": "model", "filter": "person = 'bob'"}
    await api.call("PUT", f"/v1/holds/{hold}", change)
    await erase(api, SUBJECT)
    await release_hold(api, hold)
    await api.run_retention()
    assert await count_mentions_in_holds(api) == 0
    after = await read_hold(api, hold)
    assert (after["name"], after["reason"]) == ("b", "c")
    assert after["history"][0]["name"].startswith("erased:")
    assert after["history"][1]["name"] == "b"


@pytest.mark.usefixtures("signing")
async def test_redacts_every_revision_of_an_extended_hold(api: Api) -> None:
    values = {"name": "ann", "reason": "r", "model_id": "model", "filter": "n > 100"}
    hold = await place_hold(api, **values)
    await erase(api, SUBJECT)
    await api.call("PUT", f"/v1/holds/{hold}", values | {"until": "2999-01-01T00:00:00Z"})
    await release_hold(api, hold)
    await api.run_retention()
    assert await count_mentions_in_holds(api) == 0
    audited = await api.read("/v1/audit", action="hold_released")
    assert [entry["detail"] for entry in audited["items"]] == [
        {"hold": hold, "revision": 3, "reason": "over"}
    ]
