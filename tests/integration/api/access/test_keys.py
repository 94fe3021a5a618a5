"""Keys: created, used, rotated with an overlap, revoked; never shown twice, never stored."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import api_key
from tests.integration.api.conftest import MakeApp, make_client
from tests.polling import until
from tests.settings import TOKEN

from .conftest import OPEN, Keys

_READER = {"name": "a dashboard", "grants": [{"role": "reader"}]}


async def _create_key(keys: Keys, **more: Any) -> dict[str, Any]:
    answer = await keys.ask(TOKEN, "POST", "/v1/keys", _READER | more)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    key: dict[str, Any] = answer.json()
    return key


async def _works(keys: Keys, key: str) -> bool:
    status = (await keys.ask(key, "GET", "/v1/models")).status_code
    assert status in (200, 401)
    return status == 200


def _seconds_from_now(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def test_a_key_is_made_used_and_revoked(keys: Keys, engine: AsyncEngine) -> None:
    key = await _create_key(keys)
    assert key["grants"] == [{"rights": ["read"], "project_id": None, "model_id": None}]
    assert key["created_by"] == "token"
    assert await _works(keys, key["key"])
    path = f"/v1/keys/{key['id']}"
    read = (await keys.ask(TOKEN, "GET", path)).json()
    assert read["last_used_at"] is not None
    listed = (await keys.ask(TOKEN, "GET", "/v1/keys")).json()
    assert listed == {"items": [read], "next": None}
    async with engine.connect() as connection:
        stored = await connection.scalar(
            select(func.string_agg(text("k::text"), "")).select_from(text("api_key k"))
        )
    assert stored is not None
    secret = key["key"].split("_", 2)[2]  # it may contain "_" itself
    assert secret not in str(listed)
    assert secret not in stored
    assert secret.encode().hex() not in stored
    revoked = await keys.ask(TOKEN, "POST", f"{path}/revoke")
    assert revoked.json()["revoked_at"] is not None
    assert not await _works(keys, key["key"])
    assert (await keys.ask(TOKEN, "POST", f"{path}/rotate", {})).status_code == 409
    again = await keys.ask(TOKEN, "POST", f"{path}/revoke")
    assert again.json()["revoked_at"] == revoked.json()["revoked_at"]


async def test_a_rotated_key_works_beside_the_old_one_until_a_time(
    keys: Keys, engine: AsyncEngine
) -> None:
    first = await _create_key(keys)
    path = f"/v1/keys/{first['id']}/rotate"
    second = (
        await keys.ask(TOKEN, "POST", path, {"old_works_until": _seconds_from_now(600)})
    ).json()
    assert await _works(keys, first["key"])
    assert await _works(keys, second["key"])
    later = {"old_works_until": _seconds_from_now(600)}
    third = (await keys.ask(TOKEN, "POST", path, later)).json()
    works = [await _works(keys, each["key"]) for each in (first, second, third)]
    assert works == [False, True, True]
    async with engine.begin() as connection:  # the time has come
        await connection.execute(update(api_key).values(old_works_until=func.now()))

    async def is_second_valid() -> bool:
        return await _works(keys, second["key"])

    assert await until(is_second_valid, lambda works: not works) is False
    fourth = (await keys.ask(TOKEN, "POST", path, {})).json()
    assert [await _works(keys, secret) for secret in (third["key"], fourth["key"])] == [False, True]
    assert len({key["id"] for key in (first, second, third, fourth)}) == 1
    past = await keys.ask(TOKEN, "POST", path, {"old_works_until": _seconds_from_now(-1)})
    assert past.status_code == 422


async def test_a_key_expires(keys: Keys, engine: AsyncEngine) -> None:
    key = await _create_key(keys, expires_at=_seconds_from_now(600))
    assert await _works(keys, key["key"])
    async with engine.begin() as connection:  # the key expires
        await connection.execute(update(api_key).values(expires_at=func.now()))

    async def works() -> bool:
        return await _works(keys, key["key"])

    assert await until(works, lambda works: not works) is False
    body = {"name": "x", "grants": [{"role": "reader"}], "expires_at": _seconds_from_now(-1)}
    assert (await keys.ask(TOKEN, "POST", "/v1/keys", body)).status_code == 422


async def test_a_key_revoked_through_another_replica_stops_within_seconds(
    keys: Keys, make_app: MakeApp
) -> None:
    key = await _create_key(keys)
    async with make_client(make_app(auth="on", api_token=TOKEN)) as other:
        headers = {"Authorization": f"Bearer {key['key']}"}
        assert (await other.get("/v1/models", headers=headers)).status_code == 200
        assert (await keys.ask(TOKEN, "POST", f"/v1/keys/{key['id']}/revoke")).status_code == 200

        async def read_status() -> int:
            return (await other.get("/v1/models", headers=headers)).status_code

        assert await until(read_status, lambda status: status == 401) == 401


async def test_last_use_is_written_once_a_minute(keys: Keys, engine: AsyncEngine) -> None:
    key = await _create_key(keys)
    written = select(api_key.c.last_used_at).where(api_key.c.id == key["id"])
    times: set[Any] = set()
    for _ in range(20):
        assert await _works(keys, key["key"])
        async with engine.connect() as connection:
            times.add(await connection.scalar(written))
    assert len(times) == 1
    async with engine.begin() as connection:
        long_ago = func.now() - text("interval '61 seconds'")
        await connection.execute(update(api_key).values(last_used_at=long_ago))

    async def use_again() -> datetime | None:
        await _works(keys, key["key"])
        async with engine.connect() as connection:
            last_used_at: datetime | None = await connection.scalar(written)
            return last_used_at

    [before] = times
    assert await until(use_again, lambda at: at is not None and at > before)


@pytest.mark.parametrize(
    ("grants", "allowed"),
    [
        ([{"rights": ["read"]}], True),
        ([{"rights": ["read", "admin"], "model_id": OPEN}], True),
        ([{"rights": ["read", "delete"], "model_id": OPEN}], True),
        ([{"rights": ["delete"]}], False),
        ([{"rights": ["delete"], "model_id": "another"}], False),
        ([{"role": "owner", "model_id": OPEN}], False),
    ],
)
async def test_rejects_grants_beyond_the_callers_own(
    keys: Keys, grants: list[Any], allowed: bool
) -> None:
    mine: list[dict[str, Any]] = [
        {"rights": ["read", "admin"]},
        {"rights": ["delete"], "model_id": OPEN},
    ]
    key = await keys.make(*mine)
    answer = await keys.ask(key, "POST", "/v1/keys", {"name": "x", "grants": grants})
    assert answer.status_code == (201 if allowed else 403), answer.text
    more = (await keys.ask(TOKEN, "POST", "/v1/keys", {"name": "x", "grants": grants})).json()
    rotation = await keys.ask(key, "POST", f"/v1/keys/{more['id']}/rotate", {})
    assert rotation.status_code == (200 if allowed else 403)


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
        refused = await keys.ask(key, "POST", path, body)
        assert refused.status_code == 403, (path, body)
        assert "`expires_at`" in refused.json()["detail"]
    until_then = {"expires_at": bound.isoformat()}
    assert (await keys.ask(key, "POST", "/v1/keys", _READER | until_then)).status_code == 201
    assert (await keys.ask(key, "POST", for_ever, until_then)).status_code == 200
    assert (await keys.ask(key, "POST", own, {})).status_code == 200


@pytest.mark.parametrize(
    "grants",
    [
        [],
        [{}],
        [{"rights": []}],
        [{"rights": ["reed"]}],
        [{"role": "king"}],
        [{"rights": ["read"], "model_id": "a", "project_id": "b"}],
        [{"rights": ["read"], "model": "a"}],
        [{"rights": ["read"], "model_id": ""}],
    ],
)
async def test_rejects_invalid_grants(keys: Keys, grants: list[Any]) -> None:
    answer = await keys.ask(TOKEN, "POST", "/v1/keys", {"name": "x", "grants": grants})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"].startswith("grants")


async def test_lists_keys_in_pages(keys: Keys) -> None:
    created_ids = [(await _create_key(keys))["id"] for _ in range(5)]
    listed_ids, cursor = [], ""
    while True:
        page = (await keys.ask(TOKEN, "GET", f"/v1/keys?limit=2{cursor}")).json()
        listed_ids += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert listed_ids == created_ids[::-1]


async def test_access_control_is_on_unless_it_is_switched_off(make_app: MakeApp) -> None:
    for changes in ({"auth": "on"}, {"auth": "on", "api_token": ""}):
        async with make_client(make_app(**changes)) as client:
            assert (await client.get("/v1/models")).status_code == 401
            empty = {"Authorization": "Bearer "}
            assert (await client.get("/v1/models", headers=empty)).status_code == 401
    async with make_client(make_app(auth="off")) as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_accepts_keys_only_in_the_authorization_header(guarded: httpx.AsyncClient) -> None:
    places: list[dict[str, Any]] = [
        {"params": {"token": TOKEN}},
        {"headers": {"Authorization": f"Basic {TOKEN}"}},
    ]
    for where in places:
        assert (await guarded.get("/v1/models", **where)).status_code == 401
