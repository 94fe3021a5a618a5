"""Rate, headers, CORS, and what every answer says to a browser."""

import re
from typing import Any

import httpx
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from inference_store.store.access.secrets import new_id
from inference_store.store.metrics import SHOWN
from tests.integration.api.conftest import MakeApp, client_of

from .conftest import TOKEN

_OWNER = {"Authorization": f"Bearer {TOKEN}"}


def _refused(reason: str) -> float:
    name = "inference_store_api_refused_total"
    return SHOWN["api"].get_sample_value(name, {"reason": reason}) or 0


async def test_rates_are_limited_for_each_caller(make_app: MakeApp) -> None:
    app = make_app(auth="on", api_token=TOKEN, api_rate_limit_per_minute=3)
    before = _refused("too-many-requests")
    async with client_of(app) as client:
        body = {"name": "x", "grants": [{"role": "reader"}]}
        key = (await client.post("/v1/keys", json=body, headers=_OWNER)).json()["key"]
        statuses = [(await client.get("/v1/models", headers=_OWNER)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        limited = await client.get("/v1/models", headers=_OWNER)
        assert 1 <= int(limited.headers["retry-after"]) <= 20
        assert limited.json()["type"] == "/docs/errors#too-many-requests"
        other = {"Authorization": f"Bearer {key}"}
        assert (await client.get("/v1/models", headers=other)).status_code == 200
    assert _refused("too-many-requests") == before + 2


async def test_strangers_are_limited_and_keys_that_are_known_are_not(
    make_app: MakeApp, engine: AsyncEngine
) -> None:
    """Each made-up id would be a question to Postgres."""
    looked = []

    def look(*args: Any) -> None:
        looked.extend([args[2]] if "FROM api_key" in args[2] else [])

    app = make_app(auth="on", api_token=TOKEN, api_rate_limit_per_minute=5)
    async with client_of(app) as client:
        body = {"name": "x", "grants": [{"role": "reader"}]}
        key = (await client.post("/v1/keys", json=body, headers=_OWNER)).json()["key"]
        mine = {"Authorization": f"Bearer {key}"}
        assert (await client.get("/v1/models", headers=mine)).status_code == 200
        event.listen(engine.sync_engine, "before_cursor_execute", look)
        strangers = [
            await client.get("/v1/models", headers={"Authorization": f"Bearer {text}"})
            for text in (f"isk_{new_id()}_{'x' * 43}" for _ in range(20))
        ]
        event.remove(engine.sync_engine, "before_cursor_execute", look)
        assert [each.status_code for each in strangers] == [401] * 4 + [429] * 16
        assert 1 <= int(strangers[-1].headers["retry-after"]) <= 12
        assert len(looked) == 4
        app.state.gate.keys.forget(key.split("_")[1])
        assert (await client.get("/v1/models", headers=mine)).status_code == 200
        assert (await client.get("/v1/models", headers=_OWNER)).status_code == 200


async def test_headers_are_limited(make_app: MakeApp) -> None:
    async with client_of(make_app(api_max_header_bytes=2000)) as client:
        assert (await client.get("/v1/models", headers={"X": "x" * 1500})).status_code == 200
        for answer in (
            await client.get("/v1/models", headers={"X": "x" * 2000}),
            await client.get("/v1/models", headers=[("X", "x" * 100)] * 20),
            await client.get(f"/v1/models?cursor={'x' * 2000}"),
            await client.get(f"/{'x' * 2000}"),
        ):
            assert answer.status_code == 431
            assert answer.json()["type"] == "/docs/errors#headers-too-large"


async def test_a_stranger_uploads_nothing(make_app: MakeApp) -> None:
    """Without a key, nothing of the body is read: the refusal is of the key, not of the body."""
    async with client_of(make_app(auth="on")) as client:
        answer = await client.post("/v1/models/m/inferences/query", content=b" " * 3_000_000)
        assert answer.status_code == 401


async def test_cors_is_off_unless_origins_are_named(make_app: MakeApp) -> None:
    asked = {"Origin": "https://console.example", "Access-Control-Request-Method": "POST"}
    async with client_of(make_app(auth="on")) as client:
        answer = await client.options("/v1/models", headers=asked)
        assert "access-control-allow-origin" not in answer.headers
    origins = "https://console.example, https://other.example"
    async with client_of(make_app(auth="on", api_cors_origins=origins)) as client:
        answer = await client.options("/v1/models", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://console.example"
        assert "access-control-allow-credentials" not in answer.headers
        refused = await client.get("/v1/models", headers={"Origin": "https://other.example"})
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://other.example"
        strange = await client.get("/v1/models", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in strange.headers


@pytest.mark.parametrize(
    "path", ["/v1/models", "/nowhere", "/openapi.json", "/docs", "/docs/errors", "/v1/fails"]
)
async def test_every_answer_has_security_headers(make_app: MakeApp, path: str) -> None:
    app = make_app()

    async def fails() -> None:
        raise RuntimeError("a defect")

    app.add_api_route("/v1/fails", fails)
    async with client_of(app) as client:
        answer = await client.get(path)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert ("script-src" in policy) == path.startswith("/docs")
    assert answer.status_code == {"/nowhere": 404, "/v1/fails": 500}.get(path, 200)


async def test_the_documentation_page_fetches_only_what_its_policy_allows(
    client: httpx.AsyncClient,
) -> None:
    page = await client.get("/docs")
    places = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert places
    for place in places:
        assert place.startswith("/"), place
        assert (await client.get(place)).status_code == 200
