"""The caller's own identity, rights and limits."""

from datetime import UTC, datetime, timedelta

from inference_store.access.rights import Right
from tests.integration.api.conftest import OWNER, Api, MakeApp, make_client
from tests.settings import TOKEN

from .conftest import Keys

_ALL = [right.value for right in Right]


async def test_without_access_control(api: Api) -> None:
    caller = await api.read("/v1/me")
    assert (caller["kind"], caller["name"], caller["display_name"]) == ("anyone", "anyone", None)
    assert caller["rights"] == caller["rights_over_everything"] == _ALL
    assert caller["session"] is None
    assert caller["limits"]["requests_per_minute"] is None
    on = dict.fromkeys(("presigned_urls", "thumbnails"), True)
    off = dict.fromkeys(("access_control", "oidc", "read_replica"), False)
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
        **{"presigned_urls": "off", "streams_at_once": 4, "queries_at_once_per_caller": 2},
    )
    async with make_client(app) as client:
        caller = await client.call("GET", "/v1/me", headers=OWNER)
    assert caller["limits"]["requests_per_minute"] == 9
    assert (caller["limits"]["streams_at_once"], caller["limits"]["queries_at_once"]) == (2, 2)
    assert caller["switched_on"]["access_control"]
    assert not caller["switched_on"]["presigned_urls"]
