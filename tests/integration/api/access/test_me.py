"""The caller's own identity, rights and limits."""

from datetime import UTC, datetime, timedelta

import httpx

from inference_store.access.rights import Right
from tests.integration.api.conftest import MakeApp, make_client
from tests.settings import TOKEN

from .conftest import Keys

_ALL = [right.value for right in Right]


async def test_without_access_control(client: httpx.AsyncClient) -> None:
    caller = (await client.get("/v1/me")).json()
    assert (caller["kind"], caller["name"], caller["display_name"]) == ("anyone", "anyone", None)
    assert caller["rights"] == caller["rights_over_everything"] == _ALL
    assert caller["session"] is None
    assert caller["limits"]["requests_per_minute"] is None
    assert caller["switched_on"] == {
        "access_control": False,
        "oidc": False,
        "presigned_urls": True,
        "thumbnails": True,
        "read_replica": False,
    }


async def test_a_narrow_key(keys: Keys) -> None:
    at = datetime.now(UTC) + timedelta(days=1)
    grants = ({"role": "reader", "project_id": "p"}, {"rights": ["delete"], "model_id": "m"})
    key = await keys.make(*grants, expires_at=at)
    answer = await keys.ask(key, "GET", "/v1/me")
    caller = answer.json()
    assert answer.headers["cache-control"] == "no-store"
    assert (caller["kind"], caller["name"]) == ("key", f"key:{key.split('_')[1]}")
    assert caller["display_name"] == "a test's"
    assert datetime.fromisoformat(caller["expires_at"]) == at
    assert (caller["rights"], caller["rights_over_everything"]) == (["read", "delete"], [])
    assert caller["grants"] == [
        {"rights": ["read"], "role": "reader", "project_id": "p", "model_id": None},
        {"rights": ["delete"], "role": None, "project_id": None, "model_id": "m"},
    ]


async def test_configured_token(keys: Keys) -> None:
    caller = (await keys.ask(TOKEN, "GET", "/v1/me")).json()
    assert (caller["kind"], caller["rights_over_everything"]) == ("token", _ALL)
    assert caller["grants"] == [
        {"rights": _ALL, "role": "owner", "project_id": None, "model_id": None}
    ]


async def test_limits_and_what_is_switched_on(make_app: MakeApp) -> None:
    app = make_app(
        **{"auth": "on", "api_token": TOKEN, "api_rate_limit_per_minute": 9},
        **{"presigned_urls": "off", "streams_at_once": 4, "queries_at_once_per_caller": 2},
    )
    async with make_client(app) as client:
        caller = (await client.get("/v1/me", headers={"Authorization": f"Bearer {TOKEN}"})).json()
    assert caller["limits"]["requests_per_minute"] == 9
    assert (caller["limits"]["streams_at_once"], caller["limits"]["queries_at_once"]) == (2, 2)
    assert caller["switched_on"]["access_control"]
    assert not caller["switched_on"]["presigned_urls"]


async def test_a_revoked_key(keys: Keys) -> None:
    key = await keys.make({"role": "reader"})
    assert (await keys.ask(key, "GET", "/v1/me")).status_code == 200
    await keys.ask(TOKEN, "POST", f"/v1/keys/{key.split('_')[1]}/revoke")
    assert (await keys.ask(key, "GET", "/v1/me")).status_code == 401
