"""Erasures, and their dry runs, reach dead letters and parked events; the accounts close."""

from typing import Any

import orjson
import pytest
from sqlalchemy import select

from inference_store.access import Action, Who
from inference_store.erasure.ledger import Ledger
from inference_store.index.audit import note
from inference_store.index.tables import audit, inference, kafka_partition, unsettled_event
from inference_store.inference.events import StorageKey, decode
from inference_store.platform.backoff import Stopped
from inference_store.retention import residual
from inference_store.retention.residual import remove_mentions
from tests.builders import NOW
from tests.integration.retention.stored import StoppedAt, make_leader
from tests.integration.stored_inferences import at

from .conftest import Api
from .people import (
    ACROSS,
    ALL_OPEN,
    ANY_TIME,
    ERASURES,
    SUBJECT,
    add_letters_and_parked,
    add_quarantined,
    change_letter,
    encode_metadata,
    erase,
    find_only_erasure,
    list_parked,
    make_event,
    make_person,
    make_rejected,
    place_hold,
    read_erasure,
    read_letters,
    release_hold,
    request_erasure,
)

pytestmark = pytest.mark.usefixtures("people")
_GONE = ("discarded", False)


@pytest.fixture(autouse=True)
async def letters_and_parked(api: Api, people: None) -> None:  # noqa: ARG001
    await add_letters_and_parked(api)


def list_keys(api: Api, *offsets: int) -> list[StorageKey]:
    kinds = ("data", "metadata")
    return [StorageKey(api.bucket, f"late/{n}/{kind}") for n in offsets for kind in kinds]


async def test_erases_letters_and_parked_events_of_a_subject(api: Api) -> None:
    erasure = await erase(api, SUBJECT)
    assert erasure["state"] == "deleted", erasure
    assert await read_letters(api) == {**ALL_OPEN, 0: _GONE, 2: _GONE}
    assert await list_parked(api) == {4}
    assert erasure["rows"]["unsettled_event"] == 3
    assert set(api.blobs.still_there(list_keys(api, *range(5)))) == set(list_keys(api, 1, 2, 4))
    [book] = await api.fetch(select(kafka_partition))
    assert (book.dead, book.parked, book.erased_again) == (4, 1, 1)
    discarded = (
        "SELECT count(*) FROM unsettled_event WHERE was_dead AND discard_reason LIKE 'erased by %'"
    )
    assert await api.fetch(discarded) == [2]
    # the subject's value is removed from the erasure itself
    assert erasure["asked"] == {"subject": {"key": "person", "type": None}}


async def test_erases_event_whose_response_names_the_subject(api: Api) -> None:
    """The response repeats the metadata; in event 4 the caller's own value of the key wins."""
    answer = orjson.dumps(
        {"outputs": [{"parameters": {"metadata": encode_metadata("ann").decode()}}]}
    )
    copied = make_event(1, metadata="[]", response=answer.decode())
    own = make_event(4, metadata=encode_metadata("bob").decode(), response=answer.decode())
    await change_letter(api, 1, payload=copied)
    await api.execute(
        unsettled_event.update().values(payload=own).where(unsettled_event.c.offset == 4)
    )
    assert (await erase(api, SUBJECT))["state"] == "deleted"
    assert (await read_letters(api))[1] == _GONE
    assert await list_parked(api) == {4}


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_erases_letters_of_an_erased_inference(api: Api, method: str) -> None:
    """The event's uid decides, or the requested id if the event cannot be decoded."""
    await api.run_retention()
    again = make_event(0).replace(b'"late-0"', b'"i1"')
    await change_letter(api, 0, payload=again, inference_id="i1")
    await change_letter(api, 2, inference_id="i1")
    body = {"inference_ids": ["i1"]}
    if method == "DELETE":
        requested = (await api.delete("/v1/models/model/inferences/i1")).json()
        assert requested["asked"] == body
        await api.run_retention()
        erasure = await read_erasure(api, requested)
    else:
        erasure = await erase(api, body)
    assert (erasure["state"], erasure["asked"]) == ("deleted", {"ids": 1})
    # letter 0 is of another inference of the same id: its uid differs from the erased one
    assert await read_letters(api) == {**ALL_OPEN, 2: _GONE}
    assert await list_parked(api) == {3, 4}


async def test_hold_on_everything_keeps_letters_until_its_release(api: Api) -> None:
    hold = await place_hold(api, ANY_TIME, model_id=None)
    erasure = await erase(api, SUBJECT)
    # three stored inferences, two dead letters and a parked event
    counts = (erasure["state"], erasure["progress"]["held"], erasure["inferences"])
    assert counts == ("partly_held", 6, 0), erasure
    assert await read_letters(api) == ALL_OPEN
    assert await list_parked(api) == {3, 4}
    await release_hold(api, hold)
    await api.run_retention()
    erasure = await read_erasure(api, erasure)
    assert (erasure["state"], erasure["progress"]["held"]) == ("deleted", 0), erasure
    assert await read_letters(api) == {**ALL_OPEN, 0: _GONE, 2: _GONE}
    assert await list_parked(api) == {4}
    assert api.blobs.still_there(list_keys(api, 0, 3)) == []


async def test_holds_match_letters_by_id_and_metadata(api: Api) -> None:
    """Offset 0 is held by its id, and 2 since it cannot be decoded; no hold matches 3."""
    hold = await place_hold(api, "inference_ids = 'late-0'")
    await place_hold(api, "person = 'bob'")
    erasure = await erase(api, SUBJECT)
    assert (erasure["state"], erasure["progress"]["held"]) == ("partly_held", 2), erasure
    assert await read_letters(api) == ALL_OPEN
    assert await list_parked(api) == {4}
    await release_hold(api, hold)
    await api.run_retention()
    erasure = await read_erasure(api, erasure)
    assert (erasure["state"], erasure["progress"]["held"]) == ("partly_held", 1), erasure
    assert (await read_letters(api))[0] == _GONE


async def test_hold_keeps_undecodable_letter_of_an_erased_id(api: Api) -> None:
    await change_letter(api, 2, inference_id="i1")
    erasure = await request_erasure(api, {"inference_ids": ["i1"]})
    hold = await place_hold(api, "person = 'nobody'")
    await api.run_retention()
    erasure = await read_erasure(api, erasure)
    counts = (erasure["state"], erasure["progress"]["held"], erasure["inferences"])
    assert counts == ("partly_held", 1, 1), erasure
    assert (await read_letters(api))[2] == ("open", True)
    await release_hold(api, hold)
    await api.run_retention()
    assert (await read_erasure(api, erasure))["state"] == "deleted"
    assert (await read_letters(api))[2] == _GONE


async def test_erases_objects_of_a_late_event(api: Api) -> None:
    """A parked event of an inference that is already erased has its metadata under another key."""
    await api.run_retention()
    await erase(api, SUBJECT)
    keys = [StorageKey(api.bucket, name) for name in ("late/0/data", "late/7/metadata")]
    for key in keys:
        api.put_blob(key.key, encode_metadata("ann"))
    again = make_event(0).replace(b"late/0/metadata", b"late/7/metadata")
    await add_quarantined(api, [], [make_rejected(6, again, inference_id="late-6")])
    assert (await erase(api, {"inference_ids": ["i1"]}))["rows"]["unsettled_event"] == 1
    assert await list_parked(api) == {4}
    await api.run_retention()
    assert api.blobs.still_there(keys) == []


async def remove_subject(api: Api, of: type[Ledger] = Ledger) -> None:
    """Remove the subject of the only erasure from the quarantine, as retention begins to."""
    leader = make_leader(api.engine, api.blobs)
    leader.ledger = of(api.engine, api.blobs, prefix="ledger/")
    await residual.remove_subject(leader, await find_only_erasure(api))


async def test_cancelled_erasure_removes_nothing(api: Api) -> None:
    """Cancelled after marking and before the first removal: only the marks go."""
    requested = await request_erasure(api, SUBJECT)
    path = f"{ACROSS}/{requested['id']}/cancel"

    class Cancelling(Ledger):
        async def write(self, kind: str, *args: Any, **more: Any) -> Any:
            assert kind == "erasure_batch"
            await super().write(kind, *args, **more)
            await api.ask(path, None, status=202)

    await remove_subject(api, Cancelling)
    await api.run_retention()
    assert (await read_erasure(api, requested))["state"] == "cancelled"
    assert await read_letters(api) == ALL_OPEN
    assert await list_parked(api) == {3, 4}


async def test_from_the_first_that_is_taken_it_cannot_be_cancelled(api: Api) -> None:
    requested = await request_erasure(api, SUBJECT)
    await remove_subject(api)
    await api.ask(f"{ACROSS}/{requested['id']}/cancel", None, status=409)


async def test_redacts_mentions_in_the_audit(api: Api) -> None:
    details: list[dict[str, Any]] = [
        {"filter": "person = 'ann'"},
        {"filter": "person = 'bob'"},
        {"reason": "annual"},
        {"reason": "ann asked for it"},
    ]
    async with api.engine.begin() as connection:
        for detail in details:
            await note(connection, Who("key:ada", None), Action.POLICY_SET, **detail)
    erasure = await erase(api, SUBJECT, ACROSS)
    assert (erasure["state"], erasure["rows"]["audit"]) == ("deleted", 2), erasure
    query = select(audit.c.detail).where(audit.c.action == "policy_set").order_by(audit.c.id)
    assert await api.fetch(query) == [{}, *details[1:3], {}]


async def test_redaction_of_the_audit_commits_pages_and_resumes(api: Api) -> None:
    await request_erasure(api, SUBJECT, ACROSS)
    mention = "CASE WHEN n % 1000 = 1 THEN 'person = ''ann''' ELSE '' END"
    await api.execute(
        "INSERT INTO audit (actor, action, detail)"
        f" SELECT 'x', 'policy_set', jsonb_build_object('filter', {mention})"
        " FROM generate_series(1, 2500) AS n"
    )
    erasure, check = await find_only_erasure(api), StoppedAt(3)
    leader = make_leader(api.engine, api.blobs, check=check)
    with pytest.raises(Stopped):
        await remove_mentions(leader, erasure)
    redacted = select(audit.c.id).where(audit.c.taken_by.is_not(None), audit.c.actor == "x")
    assert len(await api.fetch(redacted)) == 2
    await remove_mentions(leader, erasure)
    assert len(await api.fetch(redacted)) == 3
    assert (await find_only_erasure(api)).table_rows["audit"] == 3


_FILTER = "person = 'ann'"


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


async def test_lists_uids_in_pages_and_rejects_other_options(api: Api) -> None:
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
    cases: list[tuple[dict[str, Any], str]] = [
        ({"uids": True}, "set `dry_run` too"),
        ({"dry_run": True, "limit": 5}, "set `uids` too"),
        ({"dry_run": True, "uids": True, "cursor": "x"}, "cursor"),
        ({"dry_run": True, "uids": True, "limit": 10_001}, "limit"),
    ]
    for options, words in cases:
        answer = await api.post(ERASURES, json={**SUBJECT, **options})
        assert (answer.status_code in (400, 422), words in answer.text) == (True, True), options
