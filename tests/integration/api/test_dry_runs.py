"""Dry runs of erasures count what would be erased and, separately, what holds keep."""

from typing import Any

import pytest

from inference_store.index.tables import inference
from inference_store.inference.events import decode
from tests.builders import NOW
from tests.integration.stored_inferences import at

from .conftest import Api
from .people import (
    ACROSS,
    ANY_TIME,
    ERASURES,
    SUBJECT,
    add_letters_and_parked,
    change_letter,
    erase,
    make_event,
    make_person,
    place_hold,
)

_FILTER = "person = 'ann'"


@pytest.fixture(autouse=True)
async def letters_and_parked(api: Api, people: None) -> None:  # noqa: ARG001
    await add_letters_and_parked(api)


async def count_erasure(api: Api, body: dict[str, Any], path: str = ERASURES) -> dict[str, Any]:
    return dict(await api.ask(path, {**body, "dry_run": True}))


# the inferences of ann are i0, i2 and i4
@pytest.mark.parametrize(
    "body", [{"filter": _FILTER}, {"inference_ids": ["i0", "i2", "i4"]}, SUBJECT], ids=str
)
async def test_counts_held_inferences_separately(api: Api, body: dict[str, Any]) -> None:
    await place_hold(api, "inference_ids = 'i2'")
    dry = await count_erasure(api, body)
    erasure = await erase(api, body)
    # a dead letter or parked event that can be decoded counts as an erased inference too
    inferences = dry["inferences"] + dry["dead_letters"] + dry["parked_events"]
    counted = (erasure["inferences"], erasure["progress"]["held"])
    assert (inferences, dry["held"]) == counted
    # the dead letter that cannot be decoded may be held as well
    expected = (2, 2, 2) if body == SUBJECT else (2, 2, 1)
    assert (dry["inferences"], dry["objects"], dry["held"]) == expected


@pytest.mark.parametrize("held", [False, True])
async def test_counts_letters_and_parked_events_as_the_erasure_does(api: Api, held: bool) -> None:
    if held:
        await place_hold(api, ANY_TIME)
    dry = await count_erasure(api, SUBJECT)
    erasure = await erase(api, SUBJECT)
    rows = erasure["rows"]
    counts = (rows.get("unsettled_event", 0), erasure["progress"]["held"])
    assert (dry["dead_letters"] + dry["parked_events"], dry["held"]) == counts
    assert (dry["dead_letters"], dry["parked_events"]) == ((0, 0) if held else (2, 1))
    assert counts == ((0, 6) if held else (3, 0))


async def test_counts_letters_of_matching_inferences(api: Api) -> None:
    event = make_event(0, received_at=at(0)).replace(b'"late-0"', b'"i0"')
    uid = decode(event, record_time=NOW, buckets=api.blobs.buckets).uid
    await change_letter(api, 0, payload=event)
    target = inference.update().where(inference.c.inference_id == "i0")
    await api.execute(target.values(uid=uid))
    body = {"filter": "inference_id = 'i0'"}
    dry = await count_erasure(api, body)
    assert (dry["inferences"], dry["dead_letters"], dry["parked_events"]) == (1, 1, 0)
    assert (await erase(api, body))["rows"]["unsettled_event"] == 1


async def test_counts_equal_those_of_a_preview(api: Api) -> None:
    await place_hold(api, "inference_ids = 'i2'")
    rules = {"rules": [{"filter": _FILTER, "keep_inference": "P1D"}]}
    preview = await api.ask("/v1/models/model/retention-policy/preview", rules)
    expired = preview["would_delete"]["inferences"]
    dry = await count_erasure(api, {"filter": _FILTER})
    assert (expired["count"], expired["held"]) == (dry["inferences"], dry["held"]) == (2, 1)
    assert [expired[name] for name in ("oldest", "newest")] == [dry["oldest"], dry["newest"]]


async def test_lists_uids_in_pages(api: Api) -> None:
    await place_hold(api, "inference_ids = 'i2'")
    ann = [make_person(0, "ann"), make_person(4, "ann"), make_person(9, "ann", model_id="other")]
    for limit in (1, 2, 3, 1000):
        body: dict[str, Any] = {**SUBJECT, "uids": True, "limit": limit}
        uids: list[tuple[str, str]] = []
        while body.get("cursor", "") is not None:
            dry = await count_erasure(api, body, ACROSS)
            assert (dry["inferences"], dry["held"]) == (3, 2)
            assert len(dry["uids"]) <= limit
            uids += [(item["model_id"], item["uid"]) for item in dry["uids"]]
            body["cursor"] = dry["next"]
        assert uids == [(target.model_id, str(target.uid)) for target in ann], limit


async def test_rejects_invalid_list_options(api: Api) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"uids": True}, "give `dry_run` as well"),
        ({"dry_run": True, "limit": 5}, "give `uids` as well"),
        ({"dry_run": True, "uids": True, "cursor": "x"}, "cursor"),
        ({"dry_run": True, "uids": True, "limit": 10_001}, "limit"),
    ]
    for body, words in cases:
        answer = await api.post(ERASURES, json={**SUBJECT, **body})
        assert (answer.status_code in (400, 422), words in answer.text) == (True, True), body
