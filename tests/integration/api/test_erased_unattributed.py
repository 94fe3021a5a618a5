"""An erasure of a subject over everything reaches quarantined events of no registered model."""

from typing import Any

import pytest

from inference_store.platform.metrics import RETENTION_TROUBLE
from tests.builders import make_payload

from . import people
from .conftest import Api

pytestmark = pytest.mark.usefixtures("unattributed")
_BROKEN = b'{"model_id":"%s","metadata":[{"key":"person","value":"%s"}],"data_sto'
# offset → the model of its row, and its bytes
_LETTERS: dict[int, tuple[str | None, bytes]] = {
    0: (None, _BROKEN % (b"model", b"ann")),
    1: (None, _BROKEN % (b"model", b"bob")),
    2: (None, _BROKEN % (b"mod", b"ann")),
    3: ("stranger", _BROKEN % (b"stranger", b"ann")),
    4: (
        "stranger",
        make_payload(model_id="stranger", metadata=people.encode_metadata("ann").decode()),
    ),
    5: (
        "stranger",
        make_payload(model_id="stranger", metadata=people.encode_metadata("bob").decode()),
    ),
}
_PARKED = {6: "ann", 7: "bob"}
# all that mention ann
_ALL = {0, 2, 3, 4, 6}


@pytest.fixture
async def unattributed(api: Api) -> None:
    """Letters without a model or of one that is not registered, and parked events of the latter."""
    letters = [people.make_rejected(n, payload, model) for n, (model, payload) in _LETTERS.items()]
    events = [
        people.make_rejected(n, _BROKEN % (b"stranger", who.encode()), "stranger")
        for n, who in _PARKED.items()
    ]
    await people.add_quarantined(api, letters, events)


async def list_erased(api: Api) -> set[int]:
    """Return the offsets of letters that are discarded and empty, and of parked events gone."""
    letters = await people.read_letters(api)
    gone = {offset for offset, state in letters.items() if state == ("discarded", False)}
    return gone | (set(_PARKED) - await people.list_parked(api))


@pytest.mark.usefixtures("people")
@pytest.mark.parametrize(
    ("path", "body", "gone"),
    [
        (people.ACROSS, {}, _ALL),
        # of given models: only letters without a model whose bytes name one of them
        (people.ACROSS, {"model_ids": ["model", "other"]}, {0}),
        (people.ERASURES, {}, {0}),
        ("/v1/models/other/erasures", {}, set()),
    ],
    ids=str,
)
async def test_reaches_events_of_no_registered_model(
    api: Api, path: str, body: dict[str, Any], gone: set[int]
) -> None:
    dry = await api.ask(path, {**people.SUBJECT, **body, "dry_run": True})
    counted = (len(gone - set(_PARKED)), len(gone & set(_PARKED)))
    assert (dry["dead_letters"], dry["parked_events"]) == counted
    # they are of no model of the list
    assert all(model["dead_letters"] == 0 for model in dry["models"])
    erasure = await people.erase(api, {**people.SUBJECT, **body}, path)
    assert erasure["state"] == "deleted", erasure
    rows = erasure["rows"]
    assert rows.get("unsettled_event", 0) == sum(counted)
    assert await list_erased(api) == gone


@pytest.mark.usefixtures("people")
@pytest.mark.parametrize(
    ("model_id", "kept"), [(None, _ALL), ("other", {0, 2}), ("stranger", _ALL)]
)
async def test_holds_keep_what_may_be_theirs(
    api: Api, model_id: str | None, kept: set[int]
) -> None:
    """A letter without a model may be of any; `stranger` is registered after the request."""
    erasure = await people.request_erasure(api, people.SUBJECT, people.ACROSS)
    if model_id == "stranger":
        await api.call("PUT", "/v1/models/stranger", {})
    hold = await people.place_hold(api, people.ANY_TIME, model_id=model_id)
    dry = await api.ask(people.ACROSS, {**people.SUBJECT, "dry_run": True})
    await api.run_retention()
    erasure = await people.read_erasure(api, erasure)
    assert (erasure["state"], erasure["progress"]["held"]) == ("partly_held", dry["held"]), erasure
    assert await list_erased(api) == _ALL - kept
    await people.release_hold(api, hold)
    await api.run_retention()
    erasure = await people.read_erasure(api, erasure)
    assert (erasure["state"], erasure["progress"]["held"]) == ("deleted", 0), erasure
    assert await list_erased(api) == _ALL


@pytest.mark.usefixtures("people")
async def test_refuses_a_key_that_nothing_has(api: Api) -> None:
    for path in (people.ERASURES, people.ACROSS):
        for dry_run in (False, True):
            body = {"subject": {"key": "persn", "value": "ann"}, "dry_run": dry_run}
            problem = await api.ask(path, body, status=422)
            assert problem["type"].endswith("#unknown-metadata-key")
            [error] = problem["errors"]
            assert (error["path"], error["known"][0]) == ("subject.key", "person")
    assert (await api.read(people.ACROSS))["items"] == []


@pytest.mark.usefixtures("people")
async def test_accepts_a_key_that_only_quarantined_events_have(api: Api) -> None:
    payload = b'{"model_id":"model","pers":"Jos\\u00C9 \\"the\\" one'
    await people.add_quarantined(api, [people.make_rejected(8, payload, None)])
    body = {"subject": {"key": "pers", "value": 'JosÉ "the" one'}}
    await api.ask("/v1/models/other/erasures", body, status=422)
    erasure = await people.erase(api, body)
    assert (erasure["inferences"], erasure["rows"]["unsettled_event"]) == (0, 1)
    assert erasure["message"] is None  # something was erased
    assert await list_erased(api) == {8}


async def give_up_what_a_hold_keeps(api: Api) -> dict[str, Any]:
    """Erase the subject under a hold over everything, give up what it keeps, and run one turn."""
    await people.place_hold(api, people.ANY_TIME, model_id=None)
    erasure = await people.erase(api, people.SUBJECT, people.ACROSS)
    await api.ask(f"{people.ACROSS}/{erasure['id']}/give-up", {"reason": "a case"}, status=202)
    await api.run_retention()
    return await people.read_erasure(api, erasure)


@pytest.mark.usefixtures("people")
async def test_gives_up_what_a_hold_keeps(api: Api) -> None:
    erasure = await give_up_what_a_hold_keeps(api)
    assert (erasure["state"], erasure["progress"]["held"]) == ("deleted", 0), erasure
    assert await list_erased(api) == set()


async def test_erases_where_no_model_is_registered(api: Api) -> None:
    assert (await people.erase(api, people.SUBJECT, people.ACROSS))["state"] == "deleted"
    assert await list_erased(api) == _ALL


async def test_what_cannot_be_given_up_does_not_stop_the_service(api: Api) -> None:
    """The ledger names what is given up by its model, and no model is registered."""
    failures = RETENTION_TROUBLE.labels("other")
    before = failures._value.get()
    erasure = await give_up_what_a_hold_keeps(api)
    assert (erasure["state"], failures._value.get()) == ("failed", before + 1), erasure
    assert "no longer registered" in erasure["error"]
    assert await list_erased(api) == set()
