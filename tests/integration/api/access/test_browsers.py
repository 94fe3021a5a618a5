"""Foreign pages in the browser of a user who can reach the api."""

import httpx
import pytest

from tests.integration.api.conftest import MakeApp, make_client
from tests.settings import TOKEN

from .table import TABLE

_OURS = "http://127.0.0.1"
_EVIL = {"Origin": "https://evil.example"}
_OWNER = {"Authorization": f"Bearer {TOKEN}"}
_CHANGING = [(method, path) for method, path in TABLE if method not in {"GET", "HEAD"}]


class _AlwaysMine(dict[str, str]):
    """Maps every path parameter to the same value."""

    def __missing__(self, name: str) -> str:
        return "mine"


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "127.8.0.1", "[::1]:8080"],
)
async def test_answers_loopback_names(client: httpx.AsyncClient, host: str) -> None:
    assert (await client.get("/v1/models", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "0.0.0.0:8080",
        "192.0.2.7",
        "[2001:db8::1]",
        "[::1",
        ":8080",
        "",
    ],
)
async def test_without_access_control_only_loopback_is_answered(
    make_app: MakeApp, client: httpx.AsyncClient, host: str
) -> None:
    for path in ("/v1/models", "/openapi.json", "/reference", "/docs/", "/nowhere"):
        answer = await client.get(path, headers={"Host": host})
        assert (answer.status_code, answer.json()["type"]) == (403, "/docs/errors#foreign-request")
    async with make_client(make_app(auth="on", api_token=TOKEN)) as guarded:
        answer = await guarded.get("/v1/models", headers={"Host": host} | _OWNER)
        assert answer.status_code == 200


@pytest.mark.parametrize("auth", ["on", "off"])
@pytest.mark.parametrize(
    "headers", [_EVIL, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": ""}]
)
async def test_a_foreign_page_changes_nothing(
    make_app: MakeApp, auth: str, headers: dict[str, str]
) -> None:
    async with make_client(make_app(auth=auth, api_token=TOKEN)) as client:
        client.headers.update(_OWNER)
        assert (await client.put("/v1/models/mine", json={})).status_code == 201
        assert len(_CHANGING) > 20
        for method, path in _CHANGING:
            answer = await client.request(method, path.format_map(_AlwaysMine()), headers=headers)
            assert answer.status_code == 403, (method, path)
            assert answer.json()["type"] == "/docs/errors#foreign-request"
        # a read is answered, and the browser withholds the answer from the page
        read = await client.get("/v1/models/mine", headers=headers)
        assert read.status_code == 200
        assert "access-control-allow-origin" not in read.headers


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": _OURS},
        {"Origin": _OURS, "Sec-Fetch-Site": "same-origin"},
        {"Origin": "https://behind.a.proxy.example", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://console.example"},
        {"Origin": "https://console.example", "Sec-Fetch-Site": "cross-site"},
    ],
)
async def test_accepts_changes_from_own_pages_and_programs(
    make_app: MakeApp, headers: dict[str, str]
) -> None:
    async with make_client(make_app(api_cors_origins="https://console.example")) as client:
        assert (await client.delete("/v1/models/nothing", headers=headers)).status_code == 404
    async with make_client(make_app(api_cors_origins="*")) as client:
        assert (
            await client.delete("/v1/models/nothing", headers=headers | _EVIL)
        ).status_code == 404


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_an_allowed_origin_may_use_every_method(make_app: MakeApp, method: str) -> None:
    preflight = {"Origin": "https://console.example", "Access-Control-Request-Method": method}
    async with make_client(make_app(api_cors_origins="https://console.example")) as client:
        assert (await client.options("/v1/views", headers=preflight)).status_code == 200
