"""Keys: made, used, rotated with an overlap, revoked; never shown twice, never kept."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.index.tables import api_key
from tests.integration.api.conftest import MakeApp, client_of
from tests.polling import until
from tests.settings import TOKEN

from .conftest import OPEN, Keys

_READER = {"name": "a dashboard", "grants": [{"role": "reader"}]}


async def _made(a_key: Keys, **more: Any) -> dict[str, Any]:
    answer = await a_key.ask(TOKEN, "POST", "/v1/keys", _READER | more)
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    found: dict[str, Any] = answer.json()
    return found


async def _works(a_key: Keys, key: str) -> bool:
    status = (await a_key.ask(key, "GET", "/v1/models")).status_code
    assert status in (200, 401)
    return status == 200


def _in(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def test_a_key_is_made_used_and_revoked(a_key: Keys, engine: AsyncEngine) -> None:
    made = await _made(a_key)
    assert made["grants"] == [{"rights": ["read"], "project_id": None, "model_id": None}]
    assert made["created_by"] == "token"
    assert await _works(a_key, made["key"])
    path = f"/v1/keys/{made['id']}"
    shown = (await a_key.ask(TOKEN, "GET", path)).json()
    assert shown["last_used_at"] is not None
    listed = (await a_key.ask(TOKEN, "GET", "/v1/keys")).json()
    assert listed == {"items": [shown], "next": None}
    async with engine.connect() as connection:
        kept = await connection.scalar(
            select(func.string_agg(text("k::text"), "")).select_from(text("api_key k"))
        )
    assert kept is not None
    secret = made["key"].split("_", 2)[2]  # it may hold "_" itself
    assert secret not in str(listed)
    assert secret not in kept
    assert secret.encode().hex() not in kept
    revoked = await a_key.ask(TOKEN, "POST", f"{path}/revoke")
    assert revoked.json()["revoked_at"] is not None
    assert not await _works(a_key, made["key"])
    assert (await a_key.ask(TOKEN, "POST", f"{path}/rotate", {})).status_code == 409
    again = await a_key.ask(TOKEN, "POST", f"{path}/revoke")
    assert again.json()["revoked_at"] == revoked.json()["revoked_at"]


async def test_a_rotated_key_works_beside_the_old_one_until_a_time(
    a_key: Keys,
) -> None:
    made = await _made(a_key)
    path = f"/v1/keys/{made['id']}/rotate"
    second = (await a_key.ask(TOKEN, "POST", path, {"old_works_until": _in(600)})).json()
    assert await _works(a_key, made["key"])
    assert await _works(a_key, second["key"])
    third = (await a_key.ask(TOKEN, "POST", path, {"old_works_until": _in(5)})).json()
    assert [await _works(a_key, each) for each in (made["key"], third["key"])] == [False, True]

    async def old() -> bool:
        return await _works(a_key, second["key"])

    assert await until(old, lambda works: not works) is False
    fourth = (await a_key.ask(TOKEN, "POST", path, {})).json()
    assert [await _works(a_key, each) for each in (third["key"], fourth["key"])] == [False, True]
    assert len({each["id"] for each in (made, second, third, fourth)}) == 1
    past = await a_key.ask(TOKEN, "POST", path, {"old_works_until": _in(-1)})
    assert past.status_code == 422


async def test_a_key_expires(a_key: Keys, engine: AsyncEngine) -> None:
    made = await _made(a_key, expires_at=_in(600))
    assert await _works(a_key, made["key"])
    async with engine.begin() as connection:  # the time has come
        await connection.execute(update(api_key).values(expires_at=func.now()))

    async def works() -> bool:
        return await _works(a_key, made["key"])

    assert await until(works, lambda works: not works) is False
    body = {"name": "x", "grants": [{"role": "reader"}], "expires_at": _in(-1)}
    assert (await a_key.ask(TOKEN, "POST", "/v1/keys", body)).status_code == 422


async def test_a_key_revoked_through_another_replica_stops_within_seconds(
    a_key: Keys, make_app: MakeApp
) -> None:
    made = await _made(a_key)
    async with client_of(make_app(auth="on", api_token=TOKEN)) as other:
        headers = {"Authorization": f"Bearer {made['key']}"}
        assert (await other.get("/v1/models", headers=headers)).status_code == 200
        assert (await a_key.ask(TOKEN, "POST", f"/v1/keys/{made['id']}/revoke")).status_code == 200

        async def status() -> int:
            return (await other.get("/v1/models", headers=headers)).status_code

        assert await until(status, lambda found: found == 401) == 401


async def test_last_use_is_written_once_a_minute(a_key: Keys, engine: AsyncEngine) -> None:
    made = await _made(a_key)
    written = select(api_key.c.last_used_at).where(api_key.c.id == made["id"])
    seen: set[Any] = set()
    for _ in range(20):
        assert await _works(a_key, made["key"])
        async with engine.connect() as connection:
            seen.add(await connection.scalar(written))
    assert len(seen) == 1
    async with engine.begin() as connection:
        long_ago = func.now() - text("interval '61 seconds'")
        await connection.execute(update(api_key).values(last_used_at=long_ago))

    async def used() -> datetime | None:
        await _works(a_key, made["key"])
        async with engine.connect() as connection:
            found: datetime | None = await connection.scalar(written)
            return found

    [before] = seen
    assert await until(used, lambda at: at is not None and at > before)


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
async def test_nobody_gives_more_than_they_have(
    a_key: Keys, grants: list[Any], allowed: bool
) -> None:
    mine: list[dict[str, Any]] = [
        {"rights": ["read", "admin"]},
        {"rights": ["delete"], "model_id": OPEN},
    ]
    key = await a_key.make(*mine)
    answer = await a_key.ask(key, "POST", "/v1/keys", {"name": "x", "grants": grants})
    assert answer.status_code == (201 if allowed else 403), answer.text
    more = (await a_key.ask(TOKEN, "POST", "/v1/keys", {"name": "x", "grants": grants})).json()
    taken = await a_key.ask(key, "POST", f"/v1/keys/{more['id']}/rotate", {})
    assert taken.status_code == (200 if allowed else 403)


async def test_no_key_outlives_the_one_that_makes_it(a_key: Keys) -> None:
    bound = datetime.now(UTC) + timedelta(days=1)
    made = await _made(a_key, grants=[{"role": "owner"}], expires_at=bound.isoformat())
    key, own = made["key"], f"/v1/keys/{made['id']}/rotate"
    for_ever = f"/v1/keys/{(await _made(a_key))['id']}/rotate"
    later = (bound + timedelta(seconds=1)).isoformat()
    for path, body in (
        ("/v1/keys", _READER),
        ("/v1/keys", _READER | {"expires_at": later}),
        (own, {"expires_at": later}),
        (for_ever, {}),
    ):
        refused = await a_key.ask(key, "POST", path, body)
        assert refused.status_code == 403, (path, body)
        assert "`expires_at`" in refused.json()["detail"]
    until_then = {"expires_at": bound.isoformat()}
    assert (await a_key.ask(key, "POST", "/v1/keys", _READER | until_then)).status_code == 201
    assert (await a_key.ask(key, "POST", for_ever, until_then)).status_code == 200
    assert (await a_key.ask(key, "POST", own, {})).status_code == 200


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
async def test_grants_that_make_no_sense(a_key: Keys, grants: list[Any]) -> None:
    answer = await a_key.ask(TOKEN, "POST", "/v1/keys", {"name": "x", "grants": grants})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["path"].startswith("grants")


async def test_pages_of_keys(a_key: Keys) -> None:
    made = [(await _made(a_key))["id"] for _ in range(5)]
    found, cursor = [], ""
    while True:
        page = (await a_key.ask(TOKEN, "GET", f"/v1/keys?limit=2{cursor}")).json()
        found += [each["id"] for each in page["items"]]
        if page["next"] is None:
            break
        cursor = f"&cursor={page['next']}"
    assert found == made[::-1]


async def test_access_control_is_on_unless_it_is_switched_off(make_app: MakeApp) -> None:
    for changes in ({"auth": "on"}, {"auth": "on", "api_token": ""}):
        async with client_of(make_app(**changes)) as client:
            assert (await client.get("/v1/models")).status_code == 401
            empty = {"Authorization": "Bearer "}
            assert (await client.get("/v1/models", headers=empty)).status_code == 401
    async with client_of(make_app(auth="off")) as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_key_is_no_good_elsewhere_than_in_its_header(guarded: httpx.AsyncClient) -> None:
    places: list[dict[str, Any]] = [
        {"params": {"token": TOKEN}},
        {"headers": {"Authorization": f"Basic {TOKEN}"}},
    ]
    for where in places:
        assert (await guarded.get("/v1/models", **where)).status_code == 401
