"""Erasures remove keys, their examples, labels, and what mentions a subject in other records."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Text, cast, func, select

from inference_store.erasure.erased_lists import read_list
from inference_store.erasure.log import new_key
from inference_store.erasure.policies import ErasureScope
from inference_store.erasure.progress import Erasure, list_unfinished
from inference_store.index import key_registry, registrations
from inference_store.index.dictionary import Dictionary
from inference_store.index.tables import label, metadata_key_delta, metadata_key_seen
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import StorageKey
from inference_store.retention import batch_eraser
from inference_store.retention.eraser import step
from inference_store.retention.residual import remove_unused_names
from inference_store.retention.run import begin
from tests.integration import erasure_requests
from tests.integration.retention.stored import Eraser, make_leader
from tests.integration.stored_inferences import NewInference, at
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.transactions import transact

from .conftest import Api, MakeApp, make_client
from .people import ACROSS, ERASURES, SUBJECT, erase, place_hold, release_hold, request_erasure

_PERSONAL = "patient-4711"
_OTHER = "ward-7"


@pytest.fixture
def eraser(api: Api) -> Eraser:
    return Eraser(make_leader(api.engine, api.blobs))


def make_inference(name: str, seconds: float, value: str, model_id: str = "model") -> NewInference:
    return NewInference(name, at(seconds), [("who", "string", value)], model_id=model_id)


async def mark_inferences(
    api: Api, model: int, *targets: NewInference, scope: ErasureScope = "inference"
) -> Erasure:
    uids = [target.uid for target in targets]
    return await transact(
        api.engine, erasure_requests.request_erasure, model=model, uids=uids, scope=scope
    )


async def fold_registry(api: Api) -> None:
    assert await api.transact(key_registry.fold)


async def read_examples(api: Api, model_id: str = "model") -> list[str]:
    """Return the examples of the key, and check that both routes show the same ones."""
    keys = (await api.read(f"/v1/models/{model_id}/metadata-keys"))["items"]
    examples = [seen["examples"] for key in keys for seen in key["types"] if key["name"] == "who"]
    queryables = (await api.read(f"/v1/models/{model_id}/queryables"))["properties"]
    assert [queryables["who"]["examples"]] == examples if examples else "who" not in queryables
    return [example for each in examples for example in each]


async def count_rows(api: Api, value: str) -> int:
    number = 0
    for table in (metadata_key_seen, metadata_key_delta):
        contains_value = cast(table.c.examples, Text).contains(value)
        number += sum(await api.fetch(select(func.count()).where(contains_value)))
    return number


@pytest.mark.parametrize("folded", [False, True])
async def test_erasure_removes_examples(api: Api, eraser: Eraser, folded: bool) -> None:
    first, second = make_inference("one", 1, _PERSONAL), make_inference("two", 2, _PERSONAL)
    model = await api.store(first)
    await api.store(make_inference("elsewhere", 1, _OTHER, "another"))
    if folded:
        await fold_registry(api)
    await api.store(second)
    assert await read_examples(api) == [_PERSONAL]
    assert await count_rows(api, _PERSONAL) == 2
    assert await eraser.finish(await mark_inferences(api, model, first, second)) == "deleted"
    assert await read_examples(api) == []
    assert await count_rows(api, _PERSONAL) == 0
    assert await read_examples(api, "another") == [_OTHER]
    await api.store(make_inference("three", 3, _OTHER))
    assert await read_examples(api) == [_OTHER]
    await fold_registry(api)
    assert await read_examples(api) == [_OTHER]


async def test_next_run_removes_examples_after_a_crash(api: Api, eraser: Eraser) -> None:
    """The rows of the last batch are gone, but the erasure is not recorded as finished."""
    first = make_inference("one", 1, _PERSONAL)
    erasure = await mark_inferences(api, await api.store(first), first)
    await step(eraser.leader, erasure, None)
    (unfinished,) = await api.transact(list_unfinished, failed=False)
    assert unfinished.id == erasure.id
    assert await eraser.finish(unfinished) == "deleted"
    assert await count_rows(api, _PERSONAL) == 0


async def test_erasing_the_input_keeps_examples(api: Api, eraser: Eraser) -> None:
    """The metadata stay, and so do their values."""
    first = make_inference("one", 1, _OTHER)
    erasure = await mark_inferences(api, await api.store(first), first, scope="input")
    assert await eraser.finish(erasure) == "deleted"
    assert await read_examples(api) == [_OTHER]


async def test_concurrent_fold_preserves_no_erased_example(api: Api, eraser: Eraser) -> None:
    first = make_inference("one", 1, _PERSONAL)
    erasure = await mark_inferences(api, await api.store(first), first)
    async with api.engine.begin() as folding:
        assert await key_registry.fold(folding) == 1
        ending = asyncio.create_task(eraser.finish(erasure))
        await until(lambda: count_lock_waiters(api.engine), lambda count: count == 1)
    assert await ending == "deleted"
    assert await count_rows(api, _PERSONAL) == 0


async def count_keys(api: Api) -> dict[str, dict[str, int]]:
    """Return the model's keys, with the count of each type, and check that filters, columns and
    queryables know the same ones."""
    keys = (await api.read("/v1/models/model/metadata-keys"))["items"]
    counts = {k["name"]: {_name_type(seen): seen["count"] for seen in k["types"]} for k in keys}
    assert [key["count"] for key in keys] == [sum(types.values()) for types in counts.values()]
    queryables = (await api.read("/v1/models/model/queryables"))["properties"]
    assert {name for name in queryables if name in _NAMES} == {n for n in counts if n in _NAMES}
    for name in _NAMES - counts.keys():
        body = {"filter": f'"{name}" IS NOT NULL'}
        refused = await api.ask("/v1/models/model/inferences/count", body, status=422)
        assert refused["type"] == "/docs/errors#unknown-metadata-key"
        assert name not in refused["errors"][0]["known"]
    return counts


def _name_type(seen: dict[str, Any]) -> str:
    return f"{seen['type']} {seen['flag']}".strip()


async def test_counts_are_folded_meanwhile_and_subtracted_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A span is about to be dropped: its rows of metadata are there without their inference."""
    monkeypatch.setattr(batch_eraser, "_BATCHES_UNFOLDED", 1)
    stored = [make_inference(name, n, _OTHER) for n, name in enumerate(("one", "two", "three"))]
    model = await api.store(*stored)
    leader = make_leader(api.engine, api.blobs)
    erasure = await mark_inferences(api, model, stored[0])
    await step(leader, erasure, None, whole_span=True)
    assert await api.fetch(select(metadata_key_delta.c.key)) == []
    assert await count_keys(api) == {"who": {"string": 2}}
    again = await mark_inferences(api, model, stored[0])
    await step(leader, again, None)
    assert await count_keys(api) == {"who": {"string": 2}}


_NAMES = {"speed", "inks", "inks[]", "n", "plate", "new"}


async def test_the_list_of_keys_is_true_after_erasures_and_edits(make_app: MakeApp) -> None:
    async with make_client(make_app(policy_grace_seconds=0)) as api:
        await check_list_of_keys(api)


async def check_list_of_keys(api: Api) -> None:
    def make(number: int, *items: tuple[str, str, Any]) -> NewInference:
        return NewInference(f"i{number}", at(number), items)

    model = await api.store(
        make(0, ("speed", "int", "1"), ("inks", "json", '["a", "b"]'), ("n", "int", "x")),
        make(1, ("speed", "float", "1.5"), ("n", "int", "2"), ("plate", "string", "HH-X 1")),
        make(2, ("speed", "int", "3"), ("n", "int", None)),
    )
    await fold_registry(api)
    await api.store(make(3, ("speed", "int", "4"), ("inks", "json", '["b"]')))
    before = await count_keys(api)
    assert before["speed"] == {"int": 3, "float": 1}
    assert (before["inks"], before["inks[]"]) == ({"json present": 2}, {"string": 3})
    assert (await erase(api, {"filter": "received_at < TIMESTAMP('2026-11-01T00:00:01Z')"}))[
        "state"
    ] == "deleted"
    after = await count_keys(api)
    assert sum(after.pop("speed").values()) == 3
    assert after == {
        **{"inks": {"json present": 1}, "inks[]": {"string": 1}},
        **{"n": {"int": 1, "int null": 1}, "plate": {"string": 1}},
    }
    change = {"metadata": [{"key": "inks", "type": "string", "value": "b"}]}
    await api.ask("/v1/models/model/inferences/i3/metadata", change)
    await remove_unused_names(make_leader(api.engine, api.blobs), [model])
    edited = await count_keys(api)
    assert (edited["inks"], "inks[]" in edited) == ({"string": 1}, False)
    expired = {"filter": "plate IS NOT NULL", "keep_input": "P0D", "keep_inference": "P0D"}
    rules = {"rules": [expired, KEPT]}
    assert (await api.call("PUT", "/v1/models/model/retention-policy", rules))["revision"] == 1
    await api.post("/v1/models/model/retention-policy/run", json={})
    await api.run_retention()
    after = await count_keys(api)
    assert (sum(after["speed"].values()), "plate" in after) == (2, False)


_FACE = "face of ann"


def make_labelled(number: int, who: str, *labels: str, model_id: str = "model") -> NewInference:
    predictions = [(name, 0.5) for name in labels]
    person = [("person", "string", who)]
    return NewInference(f"i{number}", at(number), person, predictions, model_id=model_id)


async def read_warnings(api: Api, model_id: str = "model") -> str:
    """Return the warnings of a query for a label that does not exist."""
    path = f"/v1/models/{model_id}/inferences/query"
    return str((await api.ask(path, {"filter": "top_label = 'face of an'"}))["warnings"])


async def list_labels(api: Api) -> set[str]:
    return set(await api.fetch(select(label.c.name)))


async def test_erasing_the_last_inference_removes_its_label(api: Api) -> None:
    await api.store(make_labelled(1, "ann", _FACE, "cat"), make_labelled(2, "bob", "cat"))
    await api.store(make_labelled(3, "bob", _FACE, model_id="other"))
    assert _FACE in await read_warnings(api)
    assert (await erase(api, SUBJECT))["state"] == "deleted"
    assert _FACE not in await read_warnings(api)
    assert "cat" in await read_warnings(api)
    # another model's predictions still have it
    assert _FACE in await read_warnings(api, "other")
    assert await list_labels(api) == {_FACE, "cat"}
    await erase(api, {"subject": {"key": "person", "value": "bob"}}, "/v1/models/other/erasures")
    assert await list_labels(api) == {"cat"}


async def test_dictionary_recreates_a_removed_label(api: Api) -> None:
    model = await api.store(make_labelled(1, "bob", "cat"))
    ours, others = Dictionary(api.engine), Dictionary(api.engine)
    for dictionary in (ours, others):
        await dictionary.resolve({}, {model: [_FACE, "cat"]})
    old = ours.labels.number(model, _FACE)
    used = {model: [_FACE]}
    await remove_unused_names(make_leader(api.engine, api.blobs), [model])
    for dictionary in (ours, others):
        assert not await api.transact(dictionary.has_names, {}, used)
        await dictionary.resolve({}, {model: [_FACE]})
    new = ours.labels.number(model, _FACE)
    assert new not in (None, old)
    assert others.labels.number(model, _FACE) == new
    assert await api.transact(ours.has_names, {}, used)


async def test_keeps_names_of_a_batch_in_progress(api: Api) -> None:
    """The batch holds a shared lock on the registration, and the removal waits for it."""
    model = await api.store(make_labelled(1, "bob", "cat"))
    dictionary = Dictionary(api.engine)
    names = {model: ["new"]}, {model: [_FACE]}
    await dictionary.resolve(*names)
    async with api.engine.begin() as batch:
        assert await registrations.keep(batch, [model])
        leader = make_leader(api.engine, api.blobs)
        removal = asyncio.create_task(remove_unused_names(leader, [model]))
        await until(lambda: count_lock_waiters(api.engine), lambda count: count == 1)
        assert await dictionary.has_names(batch, *names)
        await api.store(replace(make_labelled(2, "ann", _FACE), metadata=[("new", "int", "1")]))
    await removal
    assert await list_labels(api) == {"cat", _FACE}
    assert await count_keys(api) == {"new": {"int": 1}, "person": {"string": 1}}


async def test_startup_removes_labels_left_by_a_crash(api: Api) -> None:
    """The service crashed between dropping a partition and removing its labels."""
    model = await api.store(make_labelled(1, "bob", "cat"))
    await Dictionary(api.engine).resolve({}, {model: [_FACE]})
    async with api.engine.begin() as batch:
        # it does not wait for a batch that takes long
        assert await registrations.keep(batch, [model])
        await begin(make_leader(api.engine, api.blobs))
    assert await list_labels(api) == {"cat", _FACE}
    await begin(make_leader(api.engine, api.blobs))
    assert await list_labels(api) == {"cat"}


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
    assert "an erasure removed its filter" in str(refused)


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


@pytest.mark.usefixtures("signing")
async def test_a_list_that_is_not_whole_is_no_answer(api: Api) -> None:
    number = (await erase(api, SUBJECT))["certificate"]
    path = f"/v1/certificates/{number}/leaves"
    leaves = (await api.read(f"/v1/certificates/{number}"))["document"]["leaves"]
    whole = await api.get(path)
    assert (whole.status_code, len(whole.content)) == (200, 33 * leaves["count"])
    piece = StorageKey(api.bucket, f"certificates/leaves/{leaves['root']}/000001")
    api.blobs.put(piece, whole.content[:33], content_type="application/octet-stream")
    # the answer had begun
    with pytest.raises(BlobMissing):
        async for _ in read_list(api.blobs, leaves["root"], size=leaves["count"]):
            pass
    api.blobs.delete_objects([piece])
    lost = await api.read(path, status=404)
    assert lost["detail"] == f"The list of certificate {number} is not in the bucket."
