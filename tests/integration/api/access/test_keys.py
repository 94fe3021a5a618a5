"""Keys: created, used, rotated with an overlap, revoked; never shown twice, never stored."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select, text, update

from inference_store.index.tables import api_key
from tests.integration.api.conftest import OWNER, Api, MakeApp, make_client
from tests.polling import until
from tests.settings import TOKEN

from .conftest import OPEN, Keys

_READER: dict[str, Any] = {"name": "a dashboard", "grants": [{"role": "reader"}]}


async def _create_key(keys: Keys, **more: Any) -> dict[str, Any]:
    answer = await keys.ask(TOKEN, "POST", "/v1/keys", _READER | more)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return dict(answer.json())


async def _works(keys: Keys, key: str) -> bool:
    status = (await keys.ask(key, "GET", "/v1/models")).status_code
    assert status in (200, 401)
    return status == 200


async def _wait_until_refused(keys: Keys, key: str) -> None:
    await until(lambda: _works(keys, key), lambda works: not works)


def _seconds_from_now(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def test_a_key_is_made_used_and_revoked(keys: Keys, guarded: Api) -> None:
    key = await _create_key(keys)
    assert key["grants"] == [{"rights": ["read"], "project_id": None, "model_id": None}]
    assert key["created_by"] == "token"
    assert await _works(keys, key["key"])
    path = f"/v1/keys/{key['id']}"
    read = await keys.call(TOKEN, "GET", path)
    assert read["last_used_at"] is not None
    listed = await keys.call(TOKEN, "GET", "/v1/keys")
    assert listed == {"items": [read], "next": None}
    [stored] = await guarded.fetch("SELECT string_agg(k::text, '') FROM api_key k")
    secret = key["key"].split("_", 2)[2]  # it may contain "_" itself
    assert secret not in str(listed)
    assert secret not in stored
    assert secret.encode().hex() not in stored
    revoked = await keys.call(TOKEN, "POST", f"{path}/revoke")
    assert revoked["revoked_at"] is not None
    assert not await _works(keys, key["key"])
    await keys.call(TOKEN, "POST", f"{path}/rotate", {}, status=409)
    again = await keys.call(TOKEN, "POST", f"{path}/revoke")
    assert again["revoked_at"] == revoked["revoked_at"]


async def test_a_rotated_key_works_beside_the_old_one_a_while(keys: Keys, guarded: Api) -> None:
    first = await _create_key(keys)
    path = f"/v1/keys/{first['id']}/rotate"
    later = {"old_works_until": _seconds_from_now(600)}
    second = await keys.call(TOKEN, "POST", path, later)
    assert await _works(keys, first["key"])
    assert await _works(keys, second["key"])
    third = await keys.call(TOKEN, "POST", path, later)
    works = [await _works(keys, each["key"]) for each in (first, second, third)]
    assert works == [False, True, True]
    await guarded.execute(update(api_key).values(old_works_until=func.now()))  # the time has come
    await _wait_until_refused(keys, second["key"])
    fourth = await keys.call(TOKEN, "POST", path, {})
    assert [await _works(keys, secret) for secret in (third["key"], fourth["key"])] == [False, True]
    assert len({key["id"] for key in (first, second, third, fourth)}) == 1
    past = {"old_works_until": _seconds_from_now(-1)}
    await keys.call(TOKEN, "POST", path, past, status=422)


async def test_a_key_expires(keys: Keys, guarded: Api) -> None:
    key = await _create_key(keys, expires_at=_seconds_from_now(600))
    assert await _works(keys, key["key"])
    await guarded.execute(update(api_key).values(expires_at=func.now()))
    await _wait_until_refused(keys, key["key"])
    past = _READER | {"expires_at": _seconds_from_now(-1)}
    await keys.call(TOKEN, "POST", "/v1/keys", past, status=422)


async def test_a_key_revoked_through_another_replica_stops_within_seconds(
    keys: Keys, make_app: MakeApp
) -> None:
    key = await _create_key(keys)
    async with make_client(make_app(auth="on", api_token=TOKEN)) as other:
        others = Keys(other)
        assert await _works(others, key["key"])
        await keys.call(TOKEN, "POST", f"/v1/keys/{key['id']}/revoke")
        await _wait_until_refused(others, key["key"])


async def test_last_use_is_written_once_a_minute(keys: Keys, guarded: Api) -> None:
    key = await _create_key(keys)
    written = select(api_key.c.last_used_at).where(api_key.c.id == key["id"])
    times: set[Any] = set()
    for _ in range(20):
        assert await _works(keys, key["key"])
        times.update(await guarded.fetch(written))
    assert len(times) == 1
    long_ago = func.now() - text("interval '61 seconds'")
    await guarded.execute(update(api_key).values(last_used_at=long_ago))

    async def use_again() -> Any:
        await _works(keys, key["key"])
        [last_used_at] = await guarded.fetch(written)
        return last_used_at

    [before] = times
    assert await until(use_again, lambda at: at is not None and at > before)


async def test_rejects_grants_beyond_the_callers_own(keys: Keys) -> None:
    own: dict[str, Any] = {"rights": ["delete"], "model_id": OPEN}
    key = await keys.make({"rights": ["read", "admin"]}, own)
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"rights": ["read"]}, True),
        ({"rights": ["read", "admin"], "model_id": OPEN}, True),
        ({"rights": ["read", "delete"], "model_id": OPEN}, True),
        ({"rights": ["delete"]}, False),
        ({"rights": ["delete"], "model_id": "another"}, False),
        ({"role": "owner", "model_id": OPEN}, False),
    ]
    for grant, allowed in cases:
        body = {"name": "x", "grants": [grant]}
        answer = await keys.ask(key, "POST", "/v1/keys", body)
        assert answer.status_code == (201 if allowed else 403), (grant, answer.text)
        more = await keys.call(TOKEN, "POST", "/v1/keys", body)
        rotation = await keys.ask(key, "POST", f"/v1/keys/{more['id']}/rotate", {})
        assert rotation.status_code == (200 if allowed else 403), grant


async def test_key_cannot_outlive_its_creators_key(keys: Keys) -> None:
    bound = datetime.now(UTC) + timedelta(days=1)
    created = await _create_key(keys, grants=[{"role": "owner"}], expires_at=bound.isoformat())
    key, own = created["key"], f"/v1/keys/{created['id']}/rotate"
    for_ever = f"/v1/keys/{(await _create_key(keys))['id']}/rotate"
    later = (bound + timedelta(seconds=1)).isoformat()
    for path, body in (
        ("/v1/keys", _READER),
        ("/v1/keys", _READER | {"expires_at": later}),
        (own, {"expires_at": later}),
        (for_ever, {}),
    ):
        refused = await keys.call(key, "POST", path, body, status=403)
        assert "`expires_at`" in refused["detail"], (path, body)
    until_then = {"expires_at": bound.isoformat()}
    await keys.call(key, "POST", "/v1/keys", _READER | until_then, status=201)
    await keys.call(key, "POST", for_ever, until_then, status=200)
    await keys.call(key, "POST", own, {}, status=200)


async def test_rejects_invalid_grants(keys: Keys) -> None:
    cases: list[list[dict[str, Any]]] = [
        [],
        [{}],
        [{"rights": []}],
        [{"rights": ["reed"]}],
        [{"role": "king"}],
        [{"rights": ["read"], "model_id": "a", "project_id": "b"}],
        [{"rights": ["read"], "model": "a"}],
        [{"rights": ["read"], "model_id": ""}],
    ]
    for grants in cases:
        body = {"name": "x", "grants": grants}
        problem = await keys.call(TOKEN, "POST", "/v1/keys", body, status=422)
        assert problem["errors"][0]["path"].startswith("grants"), grants


async def test_lists_keys_in_pages(keys: Keys) -> None:
    created_ids = [(await _create_key(keys))["id"] for _ in range(5)]
    listed_ids, following = [], ""
    while following is not None:
        page = await keys.call(TOKEN, "GET", f"/v1/keys?limit=2{following}")
        listed_ids += [item["id"] for item in page["items"]]
        following = page["next"] and f"&cursor={page['next']}"
    assert listed_ids == created_ids[::-1]


async def test_access_control_is_on_unless_it_is_switched_off(make_app: MakeApp) -> None:
    for changes in ({"auth": "on"}, {"auth": "on", "api_token": ""}):
        async with make_client(make_app(**changes)) as client:
            await client.read("/v1/models", status=401)
            empty = {"Authorization": "Bearer "}
            assert (await client.get("/v1/models", headers=empty)).status_code == 401
    async with make_client(make_app(auth="off")) as client:
        await client.read("/v1/models")


async def test_accepts_keys_only_in_the_authorization_header(guarded: Api) -> None:
    await guarded.read("/v1/models", status=401, token=TOKEN)
    basic = {"Authorization": OWNER["Authorization"].replace("Bearer", "Basic")}
    assert (await guarded.get("/v1/models", headers=basic)).status_code == 401
