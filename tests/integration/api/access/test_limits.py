"""Rate limits, limits of headers, CORS, and security headers."""

import asyncio
import base64
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import event

from inference_store.access.credentials import new_id
from inference_store.api import authentication
from inference_store.api.authentication import BYTES_OF_A_REQUEST
from inference_store.platform.metrics import SHOWN
from tests.integration.api.conftest import OWNER, Api, MakeApp, make_client
from tests.settings import TOKEN
from tests.stopped_clock import StoppedClock

_ISSUER = {"oidc_issuer": "http://127.0.0.1:9", "oidc_audience": "x"}
# without an algorithm, so it is refused before the issuer is asked
_FORGED = ".".join(
    base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in (b'{"alg": "none"}', b"{}")
)


@pytest.fixture(autouse=True)
def stop_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No bucket fills while a test runs, however long it takes."""
    monkeypatch.setattr(authentication, "time", StoppedClock())


def _count_refused(reason: str) -> float:
    name = "inference_store_api_refused_total"
    return SHOWN["api"].get_sample_value(name, {"reason": reason}) or 0


async def _status(client: Api, token: str = TOKEN) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return (await client.get("/v1/models", headers=headers)).status_code


async def _make_key(client: Api) -> dict[str, Any]:
    body = {"name": "x", "grants": [{"role": "reader"}]}
    return dict(await client.ask("/v1/keys", body, status=201, headers=OWNER))


async def test_rates_are_limited_for_each_caller_but_not_tokens_that_work(
    make_app: MakeApp,
) -> None:
    app = make_app(auth="on", api_token=TOKEN, api_rate_limit_per_minute=3)
    before = _count_refused("too-many-requests")
    async with make_client(app) as client:
        key = (await _make_key(client))["key"]
        assert [await _status(client) for _ in range(3)] == [200, 200, 429]
        limited = await client.get("/v1/models", headers=OWNER)
        assert 1 <= int(limited.headers["retry-after"]) <= 20
        assert limited.json()["type"] == "/docs/errors#too-many-requests"
        assert await _status(client, key) == 200
    assert _count_refused("too-many-requests") == before + 2
    app = make_app(auth="on", api_token=TOKEN, api_failed_tokens_per_minute=1)
    async with make_client(app) as client:
        assert [await _status(client) for _ in range(5)] == [200] * 5
        await client.read("/v1/models", status=401)  # without a token none failed
        assert await _status(client) == 200


async def test_a_body_counts_by_its_bytes(make_app: MakeApp) -> None:
    """A body that declares its size is not even read."""
    chunks_read: list[int] = []

    async def send_chunks() -> AsyncIterator[bytes]:
        for _ in range(3):
            chunks_read.append(len(chunks_read))
            yield b" " * BYTES_OF_A_REQUEST

    app = make_app(auth="on", api_token=TOKEN, api_rate_limit_per_minute=5)
    query = "/v1/models/model/inferences/query"
    async with make_client(app) as client:
        size = OWNER | {"Content-Length": str(3 * BYTES_OF_A_REQUEST)}
        first = await client.post(query, content=send_chunks(), headers=size)
        assert (first.status_code, len(chunks_read)) == (422, 3)  # three of five requests
        second = await client.post(query, content=send_chunks(), headers=size)
        assert (second.status_code, len(chunks_read)) == (429, 3)
        assert 1 <= int(second.headers["retry-after"]) <= 12
        assert f"each {BYTES_OF_A_REQUEST} bytes" in second.json()["detail"]
        # without a size it counts as one request before it is read, and as the rest afterwards
        third = await client.post(query, content=send_chunks(), headers=OWNER)
        assert (third.status_code, len(chunks_read)) == (429, 6)
        assert [await _status(client) for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("kind", ["unknown keys", "another's secret", "words", "tokens"])
async def test_failed_tokens_are_limited_by_address(make_app: MakeApp, kind: str) -> None:
    """Over the limit no token is checked, not even the right API_TOKEN; keys in use pass."""
    look_ups = []

    def note_look_up(*args: Any) -> None:
        look_ups.extend([args[2]] if "FROM api_key" in args[2] else [])

    app = make_app(auth="on", api_token=TOKEN, api_failed_tokens_per_minute=5, **_ISSUER)
    async with make_client(app) as client:
        key = await _make_key(client)
        assert await _status(client, key["key"]) == 200
        make_guess: Callable[[], str] = {
            "unknown keys": lambda: f"isk_{new_id()}_{'x' * 43}",
            "another's secret": lambda: f"isk_{key['id']}_{'x' * 43}",
            "words": lambda: f"word-{new_id()}",
            "tokens": lambda: f"{_FORGED}.{new_id()}",
        }[kind]
        event.listen(client.engine.sync_engine, "before_cursor_execute", note_look_up)
        answers = await asyncio.gather(
            *(client.get("/v1/models", headers={"Authorization": f"Bearer {make_guess()}"})
              for _ in range(20))
        )  # fmt: skip
        event.remove(client.engine.sync_engine, "before_cursor_execute", note_look_up)
        assert sorted(answer.status_code for answer in answers) == [401] * 5 + [429] * 15
        assert len(look_ups) <= 5
        [refusal, *_] = [answer for answer in answers if answer.status_code == 429]
        assert 1 <= int(refusal.headers["retry-after"]) <= 12
        assert "API_RATE_LIMIT_PER_MINUTE" in refusal.json()["detail"]
        app.state.authenticator.keys.forget(key["id"])
        assert await _status(client, key["key"]) == 200
        assert await _status(client) == 429


async def test_headers_are_limited(make_app: MakeApp) -> None:
    async with make_client(make_app()) as client:
        assert (await client.get("/v1/models", headers={"X": "x" * 15_000})).status_code == 200
        for answer in (
            await client.get("/v1/models", headers={"X": "x" * 17_000}),
            await client.get("/v1/models", headers=[("X", "x" * 1000)] * 17),
            await client.get(f"/v1/models?cursor={'x' * 17_000}"),
            await client.get(f"/{'x' * 17_000}"),
        ):
            assert answer.status_code == 431
            assert answer.json()["type"] == "/docs/errors#headers-too-large"


async def test_cors_is_off_unless_origins_are_named(make_app: MakeApp) -> None:
    console = "https://console.example"
    preflight = {"Origin": console, "Access-Control-Request-Method": "POST"}
    allowed = "access-control-allow-origin"
    async with make_client(make_app(auth="on")) as client:
        # the refusal is about the missing key, not about the body, which is not read
        body = b" " * 3_000_000
        answer = await client.post("/v1/models/m/inferences/query", content=body)
        assert answer.status_code == 401
        answer = await client.options("/v1/models", headers=preflight)
        assert allowed not in answer.headers
    origins = f"{console}, https://other.example"
    async with make_client(make_app(auth="on", api_cors_origins=origins)) as client:
        answer = await client.options("/v1/models", headers=preflight)
        assert (answer.status_code, answer.headers[allowed]) == (200, console)
        assert "access-control-allow-credentials" not in answer.headers
        refused = await client.get("/v1/models", headers={"Origin": "https://other.example"})
        assert (refused.status_code, refused.headers[allowed]) == (401, "https://other.example")
        strange = await client.get("/v1/models", headers={"Origin": "https://evil.example"})
        assert allowed not in strange.headers
        docs = await client.get("/docs")
        assert (docs.status_code, docs.headers["location"]) == (307, "docs/")


async def test_every_answer_has_security_headers(make_app: MakeApp) -> None:
    app = make_app()

    async def fail() -> None:
        raise RuntimeError("a defect")

    app.add_api_route("/v1/fails", fail)
    statuses = {"/nowhere": 404, "/docs/nowhere": 404, "/v1/fails": 500}
    async with make_client(app) as client:
        for path in ("/v1/models", "/openapi.json", "/reference", *statuses):
            answer = await client.get(path)
            assert answer.status_code == statuses.get(path, 200), path
            assert answer.headers["x-content-type-options"] == "nosniff", path
            assert answer.headers["x-frame-options"] == "DENY", path
            assert answer.headers["referrer-policy"] == "no-referrer", path
            policy = answer.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in policy, path
            assert ("script-src" in policy) == path.startswith("/reference"), path
        # the documentation page fetches only what its policy allows
        page = (await client.get("/reference")).text
        urls = re.findall(r'(?:src|(?<!<a )href)="([^"]+)"', page)
        assert len(urls) == 6
        for url in urls:
            assert (await client.get(f"/{url}")).status_code == 200, url
        for place in ("console/", "docs/"):
            assert f'<a href="{place}">' in page
