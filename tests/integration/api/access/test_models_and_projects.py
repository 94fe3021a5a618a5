"""Rights to models and projects, one's own rights, and the audit of changes and reads."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from inference_store.access.rights import Action, Right
from inference_store.erasure import certificates, erased_lists
from inference_store.erasure.log import KIND, make_key_document, new_key, sign_document
from inference_store.erasure.progress import advance_erasure, find_erasures
from inference_store.index import registrations
from inference_store.index.registrations import Details
from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.capture.registrations import RegisteredModel, Registrations
from tests.builders import make_event
from tests.integration.api import people
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import OWNER, Api, MakeApp, make_client
from tests.integration.stored_inferences import NewInference, at
from tests.integration.waiting import count_lock_waiters
from tests.polling import until
from tests.settings import TOKEN, make_settings

from .conftest import OPEN, SECRET, Keys
from .path_values import Ids, add_path_values

_PROJECT = f"{OPEN}-project"
_OWNER: dict[str, Any] = {"role": "owner"}
_ADMIN: dict[str, Any] = {"rights": ["read", "admin"]}
_OF_NEW, _OF_OPEN = _OWNER | {"model_id": "new"}, _OWNER | {"model_id": OPEN}
_OF_PROJECT, _OF_ANOTHER, _OF_MINE = (
    _OWNER | {"project_id": project} for project in (_PROJECT, "another", "mine")
)
# the grants of a key, the model and the project that it asks for, and the status
_MOVES: list[tuple[list[dict[str, Any]], str, str | None, int]] = [
    # a new model needs everything or its own id; a project would reveal what exists
    ([_OWNER], "new", "anything", 201),
    ([_OF_NEW], "new", None, 201),
    ([_OF_NEW], "new", _PROJECT, 403),
    ([_OF_NEW, _OF_PROJECT], "new", _PROJECT, 201),
    ([_OF_PROJECT], "new", _PROJECT, 404),
    ([_OF_PROJECT], SECRET, _PROJECT, 404),
    ([{"role": "reader"}], "new", None, 403),
    # an existing model: unchanged, or moved between two projects of the grants
    ([_OF_PROJECT], OPEN, _PROJECT, 200),
    ([_OF_PROJECT], OPEN, "another", 403),
    ([_OF_PROJECT], OPEN, None, 403),
    ([_OF_OPEN], OPEN, _PROJECT, 200),
    ([_OF_OPEN], OPEN, "another", 403),
    ([_OF_PROJECT, _OF_ANOTHER], OPEN, "another", 200),
    ([_OWNER], OPEN, None, 200),
    # a move must not give its caller a new right over the model
    ([_ADMIN, _OF_MINE], SECRET, "mine", 403),
    ([_ADMIN, {"rights": ["read_inputs"], "project_id": "mine"}], SECRET, "mine", 403),
    ([_ADMIN, _OF_MINE], SECRET, "another", 200),
    ([_ADMIN, _OF_MINE, _OWNER | {"model_id": SECRET}], SECRET, "mine", 200),
    ([_ADMIN, _OF_MINE], "new", "mine", 201),
]


@pytest.mark.usefixtures("two_models")
async def test_registering_and_moving(keys: Keys) -> None:
    for grants, model_id, project_id, status in _MOVES:
        key = await keys.make(*grants)
        body = {"project_id": project_id}
        await keys.call(key, "PUT", f"/v1/models/{model_id}", body, status=status)
        await keys.ask(TOKEN, "DELETE", "/v1/models/new")
        for moved in (SECRET, OPEN):
            await keys.call(TOKEN, "PUT", f"/v1/models/{moved}", {"project_id": f"{moved}-project"})


@pytest.mark.parametrize(
    ("more", "status", "project_id"),
    [({"project_id": "theirs"}, 200, "mine"), ({"model_id": "another"}, 403, "theirs")],
)
async def test_event_registers_the_model_during_the_request(
    keys: Keys, guarded: Api, more: dict[str, str], status: int, project_id: str
) -> None:
    """The model is missing when the right is checked, and in a project when it is written."""
    key = await keys.make(_OF_NEW, _OF_MINE, {**_OWNER, **more})
    async with guarded.engine.begin() as connection:
        events = {"new": make_event(model_id="new", project_id="theirs")}
        await registrations.register_missing(connection, events)
        body = {"project_id": "mine"}
        request = asyncio.create_task(keys.ask(key, "PUT", "/v1/models/new", body))
        assert await until(lambda: count_lock_waiters(guarded.engine), bool)
    answer = await request
    assert answer.status_code == status, answer.text
    model = await keys.call(TOKEN, "GET", "/v1/models/new")
    assert (model["registered_by"], model["project_id"]) == ("event", project_id)


@pytest.mark.usefixtures("two_models")
async def test_suggests_only_names_that_the_caller_may_read(keys: Keys) -> None:
    reader = await keys.make({"role": "reader", "model_id": OPEN})
    everyone = "The nearest are secret-model, open-model."
    model = "/v1/models/secret-modle"
    for key, hint in ((reader, "The nearest is open-model."), (TOKEN, everyone)):
        for method, path, body in (
            ("GET", model, None),
            ("POST", f"{model}/inferences/count", {}),
            ("POST", "/v1/inferences/count", {"model_ids": ["secret-modle"]}),
        ):
            problem = await keys.call(key, method, path, body, status=404)
            assert problem["detail"] == f"There is no model 'secret-modle'. {hint}", path
    hidden = await keys.call(reader, "GET", f"/v1/models/{SECRET}", status=404)
    assert hidden["detail"] == f"There is no model '{SECRET}'. The nearest is open-model."
    condition = {"key": f"{SECRET}-key", "operator": "eq", "value": "x"}
    named = {"metadata_filter": [condition], "prediction": {"label": "secret-label"}}
    path = f"/v1/models/{OPEN}"
    refused = await keys.call(reader, "POST", f"{path}/inferences/query", named, status=422)
    assert refused["errors"][0]["known"] == [f"{OPEN}-key"]
    metadata_keys = await keys.call(reader, "GET", f"{path}/metadata-keys")
    assert [item["name"] for item in metadata_keys["items"]] == [f"{OPEN}-key"]


@pytest.mark.usefixtures("two_models")
async def test_the_bytes_of_a_dead_letter_are_input(keys: Keys, guarded: Api) -> None:
    letters = [people.make_rejected(n, b"a-payload", model) for n, model in enumerate((OPEN, None))]
    await people.add_quarantined(guarded, letters)
    items = (await keys.call(TOKEN, "GET", "/v1/dead-letters"))["items"]
    ids = {item["model_id"]: item["id"] for item in items}
    inputs: dict[str, Any] = {"rights": ["read_inputs"]}
    for grants, model_id, status, is_shown in (
        ([_ADMIN], OPEN, 200, False),
        ([_ADMIN, inputs | {"model_id": OPEN}], OPEN, 200, True),
        ([_ADMIN, inputs | {"model_id": OPEN}], None, 200, False),
        ([_ADMIN, inputs], None, 200, True),
        ([_ADMIN | {"model_id": OPEN}], OPEN, 200, False),
        ([_ADMIN | {"model_id": OPEN}], None, 404, False),
    ):
        key = await keys.make(*grants)
        [before] = await guarded.fetch("SELECT count(*) FROM audit")
        letter = await keys.call(key, "GET", f"/v1/dead-letters/{ids[model_id]}", status=status)
        assert ("a-payload" in str(letter)) == is_shown, grants
        assert await guarded.fetch("SELECT count(*) FROM audit") == [before + int(is_shown)]


@pytest.mark.usefixtures("two_models")
async def test_only_who_may_erase_everything_reaches_them(keys: Keys, guarded: Api) -> None:
    await guarded.store(NewInference("p", at(1), [("person", "string", "ann")], model_id=OPEN))
    payload = f'{{"model_id":"{OPEN}","person":"ann","pet":"cat","broken'.encode()
    await people.add_quarantined(guarded, [people.make_rejected(0, payload, None)])
    narrow = await keys.make({"role": "owner", "model_id": OPEN})
    for path in (f"/v1/models/{OPEN}/erasures", people.ACROSS):
        # nor does the refusal of a key say whether such a letter has it
        unseen = {"subject": {"key": "pet", "value": "cat"}, "dry_run": True}
        for key, counted, status in ((narrow, 0, 422), (TOKEN, 1, 200)):
            dry = await keys.call(
                key, "POST", path, {**people.SUBJECT, "dry_run": True}, status=200
            )
            assert dry["dead_letters"] == counted, path
            await keys.call(key, "POST", path, unseen, status=status)
    for key, state in ((narrow, ("open", True)), (TOKEN, ("discarded", False))):
        requested = await keys.call(key, "POST", people.ACROSS, people.SUBJECT, status=202)
        await guarded.run_retention()
        erasure = await keys.call(key, "GET", f"{people.ACROSS}/{requested['id']}")
        assert erasure["state"] == "deleted", erasure
        assert await people.read_letters(guarded) == {0: state}


_ALL = [right.value for right in Right]


async def test_without_access_control(api: Api) -> None:
    caller = await api.read("/v1/me")
    assert (caller["kind"], caller["name"], caller["display_name"]) == ("anyone", "anyone", None)
    assert caller["rights"] == caller["rights_over_everything"] == _ALL
    assert caller["session"] is None
    assert caller["limits"]["requests_per_minute"] is None
    on = dict.fromkeys(("presigned_urls", "thumbnails"), True)
    off = dict.fromkeys(("access_control", "oidc", "read_replica", "replays"), False)
    assert caller["switched_on"] == on | off


async def test_keys(keys: Keys) -> None:
    at = datetime.now(UTC) + timedelta(days=1)
    grants = ({"role": "reader", "project_id": "p"}, {"rights": ["delete"], "model_id": "m"})
    key = await keys.make(*grants, expires_at=at)
    answer = await keys.ask(key, "GET", "/v1/me")
    caller, id = answer.json(), key.split("_")[1]
    assert answer.headers["cache-control"] == "no-store"
    assert (caller["kind"], caller["name"]) == ("key", f"key:{id}")
    assert caller["display_name"] == "a test's"
    assert datetime.fromisoformat(caller["expires_at"]) == at
    assert (caller["rights"], caller["rights_over_everything"]) == (["read", "delete"], [])
    assert caller["grants"] == [
        {"rights": ["read"], "role": "reader", "project_id": "p", "model_id": None},
        {"rights": ["delete"], "role": None, "project_id": None, "model_id": "m"},
    ]
    await keys.call(TOKEN, "POST", f"/v1/keys/{id}/revoke")
    await keys.call(key, "GET", "/v1/me", status=401)
    caller = await keys.call(TOKEN, "GET", "/v1/me")
    assert (caller["kind"], caller["rights_over_everything"]) == ("token", _ALL)
    everything = {"rights": _ALL, "role": "owner", "project_id": None, "model_id": None}
    assert caller["grants"] == [everything]


async def test_limits_and_what_is_switched_on(make_app: MakeApp) -> None:
    app = make_app(
        **{"auth": "on", "api_token": TOKEN, "api_rate_limit_per_minute": 9},
        **{"presigned_urls": "off", "streams_at_once": 4, "postgres_pool_size": 7},
    )
    async with make_client(app) as client:
        caller = await client.call("GET", "/v1/me", headers=OWNER)
    assert caller["limits"]["requests_per_minute"] == 9
    assert (caller["limits"]["streams_at_once"], caller["limits"]["queries_at_once"]) == (2, 2)
    assert caller["switched_on"]["access_control"]
    assert not caller["switched_on"]["presigned_urls"]


@pytest.fixture
async def ids(guarded: Api, two_models: dict[str, int]) -> dict[str, Ids]:
    async with guarded.engine.begin() as connection:
        return {
            name: await add_path_values(connection, name, number, offset)
            for offset, (name, number) in enumerate(two_models.items())
        }


async def _read_items(keys: Keys, path: str, key: str = TOKEN) -> list[dict[str, Any]]:
    return list((await keys.call(key, "GET", path, status=200))["items"])


@pytest.mark.usefixtures("two_models")
async def test_erasures_and_certificates(keys: Keys, guarded: Api, ids: dict[str, Ids]) -> None:
    erasures = await _read_items(keys, "/v1/erasures")
    states = {erasure["id"]: erasure["state"] for erasure in erasures}
    async with guarded.engine.begin() as connection:
        [first, *_] = await find_erasures(connection)
        await advance_erasure(connection, first.id, "deleted")
    for query, expected in (
        ("state=deleted", [str(first.id)]),
        ("state=failed", []),
        (f"state=deleted&state={states[str(first.id)]}", list(states)),
    ):
        found = await _read_items(keys, f"/v1/erasures?{query}")
        assert [erasure["id"] for erasure in found] == expected, query
    erasures_of_model = await _read_items(keys, f"/v1/erasures?model_id={OPEN}")
    assert erasures_of_model
    assert {erasure["model_id"] for erasure in erasures_of_model} == {OPEN}
    assert ids[OPEN]["erasure_id"] in {erasure["id"] for erasure in erasures_of_model}
    await keys.call(TOKEN, "GET", "/v1/erasures?state=gone", status=422)
    [certificate] = await _read_items(keys, f"/v1/certificates?model_id={SECRET}")
    assert certificate["model_ids"] == [SECRET]
    assert str(certificate["number"]) == ids[SECRET]["certificate"]
    key = await keys.make({"role": "owner", "model_id": OPEN})
    for path in ("/v1/erasures", "/v1/certificates"):
        hidden, absent = [
            await keys.ask(key, "GET", f"{path}?model_id={name}") for name in (SECRET, "nobody")
        ]
        assert hidden.status_code == absent.status_code == 404, path
        assert hidden.text.replace(SECRET, "nobody") == absent.text, path


@pytest.mark.usefixtures("two_models")
async def test_every_reader_may_read_key_documents(keys: Keys, guarded: Api) -> None:
    signing = new_key()
    async with guarded.engine.begin() as connection:
        head = await certificates.find_head(connection)
        document = make_key_document(signing.public, after=head)
        introduced = sign_document(signing, KIND, document)
        await erased_lists.apply_signed(connection, introduced.members, datetime.now(UTC), "test")
    path = f"/v1/certificates/{introduced.number}"
    narrow = await keys.make({"role": "reader", "model_id": OPEN})
    for key in (TOKEN, narrow):
        assert (await keys.ask(key, "GET", path)).content == introduced.data
    await keys.call(TOKEN, "GET", f"{path}/leaves", status=404)


@pytest.mark.usefixtures("two_models")
async def test_models_and_projects(keys: Keys, guarded: Api) -> None:
    path = f"/v1/models?project_id={OPEN}-project"
    assert [model["model_id"] for model in await _read_items(keys, path)] == [OPEN]
    await keys.call(TOKEN, "GET", "/v1/models?project_id=nobody", status=404)
    narrow = await keys.make({"role": "owner", "model_id": SECRET})
    await keys.call(narrow, "GET", path, status=404)
    async with guarded.engine.begin() as connection:
        await registrations.put(connection, "third", Details(project_id=f"{OPEN}-project"))
        await registrations.put(connection, "alone", Details())
    both = [
        {"project_id": f"{OPEN}-project", "models": 2},
        {"project_id": f"{SECRET}-project", "models": 1},
    ]
    assert await _read_items(keys, "/v1/projects") == both
    page = await keys.call(TOKEN, "GET", "/v1/projects?limit=1")
    assert page["items"] == both[:1]
    assert await _read_items(keys, f"/v1/projects?limit=1&cursor={page['next']}") == both[1:]
    assert await _read_items(keys, "/v1/projects", narrow) == both[1:]


async def test_proxy_reads_registrations_with_a_reader_key(
    make_app: MakeApp, keys: Keys, tmp_path: Path
) -> None:
    mapping = {"boxes": "boxes", "scores": "scores", "labels": "classes", "batched": True}
    body = {"task_type": "Object Detection", "output_mapping": mapping}
    for model_id in ("yolo", "team/yolo"):
        path = f"/v1/models/{model_id.replace('/', '%2F')}"
        assert (await keys.ask(TOKEN, "PUT", path, body)).status_code < 300
    reader = await keys.make({"role": "reader"})
    async with serve_app(make_app(auth="on", api_token=TOKEN)) as client:
        settings = make_settings(
            CaptureSettings,
            proxy_registry_url=str(client.base_url),
            proxy_registry_key=reader,
            proxy_registry_file=tmp_path / "models.json",
            proxy_report_seconds=0.2,
        )
        registrations = Registrations(settings)
        task = asyncio.create_task(registrations.keep_current())

        async def find_models() -> list[RegisteredModel | None]:
            return [registrations.of(name) for name in ("yolo", "team/yolo")]

        await until(find_models, all)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert await find_models() == [RegisteredModel(task_type="object_detection", batched=True)] * 2


_MODEL = f"/v1/models/{OPEN}"
_ONE = f"{_MODEL}/inferences/one"
_ITEM = {"metadata": [{"key": "reviewed", "type": "bool", "value": "true"}]}
_RULES = {"rules": [{"keep_input": "P30D", "keep_inference": "P1Y"}]}
_POLICY = {"level": "model", "id": OPEN, **_RULES}
_TAGS = {"add": ["seen"], "inference_ids": ["one"]}
_URLS = {"include": ["urls"]}

# (method, path, body, actions that it adds to the audit)
REQUESTS: list[tuple[str, str, Any, list[Action]]] = [
    ("GET", _ONE, None, [Action.LINKS_MADE]),
    ("GET", f"{_ONE}?include=metadata", None, []),
    ("POST", f"{_MODEL}/inferences/query", _URLS, [Action.LINKS_MADE]),
    ("POST", f"{_MODEL}/inferences/query", {}, []),
    ("GET", f"{_MODEL}/inferences?include=urls", None, [Action.LINKS_MADE]),
    ("GET", f"{_ONE}/data", None, [Action.DATA_READ]),
    ("GET", f"{_ONE}/metadata", None, [Action.METADATA_READ]),
    ("GET", f"{_ONE}/response", None, []),
    ("POST", f"{_ONE}/metadata", _ITEM, [Action.METADATA_CHANGED]),
    ("POST", f"{_MODEL}/inferences/tags", _TAGS, [Action.METADATA_CHANGED]),
    ("POST", f"{_MODEL}/inferences/tags", _TAGS, []),
    ("PUT", f"{_ONE}/ground-truth", {"items": []}, [Action.GROUND_TRUTH_CHANGED]),
    ("PUT", f"{_ONE}/ground-truth", {"items": []}, []),
    ("DELETE", f"{_ONE}/ground-truth", None, [Action.GROUND_TRUTH_CHANGED]),
    ("DELETE", _ONE, None, [Action.INFERENCE_ERASED]),
    ("GET", f"{_ONE}/data", None, []),  # erased, so nothing was read
    ("PUT", _MODEL, {"project_id": "p"}, [Action.MODEL_MOVED]),
    ("PUT", _MODEL, {"project_id": "p", "name": "x"}, [Action.MODEL_CHANGED]),
    ("PUT", "/v1/models/new", {}, [Action.MODEL_REGISTERED]),
    ("PUT", f"{_MODEL}/retention-policy", _POLICY, [Action.POLICY_SET]),
    ("POST", f"{_MODEL}/retention-policy/run", None, [Action.RETENTION_REQUESTED]),
    ("POST", "/v1/retention-policy/run", None, [Action.RETENTION_REQUESTED]),
    ("DELETE", f"{_MODEL}/retention-policy", None, [Action.POLICY_REMOVED]),
    ("DELETE", f"{_MODEL}/retention-policy", None, []),  # there is none: no change
    ("DELETE", "/v1/models/new", None, [Action.MODEL_REMOVED]),
    ("POST", "/v1/dead-letters/redrive", {}, [Action.DEAD_LETTERS_REDRIVEN]),
    ("POST", "/v1/parked-events/retry", {}, [Action.PARKED_RETRIED]),
    ("POST", "/v1/keys", {"name": "x", "grants": [{"role": "reader"}]}, [Action.KEY_CREATED]),
    ("POST", "/v1/keys/nobody/revoke", None, []),  # refused
]


async def _read_entries(keys: Keys, **filters: Any) -> list[dict[str, Any]]:
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    return list((await keys.call(TOKEN, "GET", f"/v1/audit?{query}"))["items"])


@pytest.mark.usefixtures("two_models")
async def test_audits_every_change_and_every_read_of_an_input(keys: Keys) -> None:
    key = await keys.make({"role": "owner"})
    name = f"key:{key.split('_')[1]}"
    expected: list[tuple[str, str]] = []
    for method, path, body, actions in REQUESTS:
        await keys.ask(key, method, path, body)
        expected += [(name, action.value) for action in actions]
        entries = await _read_entries(keys)
        found = [(entry["actor"], entry["action"]) for entry in entries[::-1]]
        assert found == expected, (method, path)
    assert {entry["client"] for entry in entries} == {"127.0.0.1"}
    assert len([entry for entry in entries if entry["model_id"] == OPEN]) == 15
    read = next(entry for entry in entries if entry["action"] == "data_read")
    assert read["uid"] is not None
    policy = next(entry for entry in entries if entry["action"] == "policy_set")
    assert policy["detail"].pop("effective_at") is not None
    change = {"level": "model", "undercuts_minimum_age": False, "revision": 1}
    assert policy["detail"] == {**_RULES, **change}


@pytest.mark.usefixtures("two_models")
async def test_filters_and_pages(keys: Keys, guarded: Api) -> None:
    more = [NewInference(f"more-{n}", at(n + 1), model_id=OPEN) for n in range(3)]
    await guarded.store(*more)
    await keys.call(TOKEN, "POST", f"{_MODEL}/inferences/query", _URLS)
    for model_id in (OPEN, SECRET):
        await keys.ask(TOKEN, "GET", f"/v1/models/{model_id}/inferences/one/data")
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 6),
        ({"action": "links_made"}, 4),
        ({"model_id": SECRET}, 1),
        ({"uid": more[0].uid}, 1),
        ({"actor": "token", "model_id": OPEN, "action": "data_read"}, 1),
        ({"actor": "key:nobody"}, 0),
        ({"at_from": "2026-01-01T00:00:00Z"}, 6),
        ({"at_to": "2026-01-01T00:00:00Z"}, 0),
    ]
    for filters, number in cases:
        assert len(await _read_entries(keys, **filters)) == number, filters
    first = await keys.call(TOKEN, "GET", "/v1/audit?limit=4")
    rest = await keys.call(TOKEN, "GET", f"/v1/audit?limit=4&cursor={first['next']}")
    ids = [entry["id"] for entry in first["items"] + rest["items"]]
    assert ids == sorted(ids, reverse=True)
    assert (len(ids), rest["next"]) == (6, None)
    for wrong in ("action=data_reed", "uid=1", "at_from=now", "actr=x"):
        await keys.call(TOKEN, "GET", f"/v1/audit?{wrong}", status=422)


@pytest.mark.usefixtures("two_models")
async def test_serves_no_input_without_the_right_or_the_audit_entry(
    keys: Keys, guarded: Api
) -> None:
    reader = await keys.make({"rights": ["read"], "model_id": OPEN})
    inference = await keys.call(reader, "GET", _ONE)
    assert inference["metadata"]
    assert "urls" not in inference
    await keys.call(reader, "GET", f"{_ONE}?include=urls", status=403)
    await keys.call(reader, "GET", f"{_MODEL}/inferences?include=urls", status=403)
    await keys.call(reader, "POST", f"{_MODEL}/inferences/query", _URLS, status=403)
    assert await _read_entries(keys) == []
    await guarded.execute("ALTER TABLE audit ADD CHECK (action <> 'data_read')")
    answer = await keys.ask(TOKEN, "GET", f"{_ONE}/data")
    assert answer.status_code == 500
    assert b"extended_metadata" not in answer.content
    assert (await keys.ask(TOKEN, "GET", f"{_ONE}/response")).status_code == 200
