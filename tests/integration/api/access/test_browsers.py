"""Pages of strangers in the browser of somebody who reaches the api."""

import httpx
import pytest

from tests.integration.api.conftest import MakeApp, client_of
from tests.settings import TOKEN

from .table import TABLE

_OURS = "http://127.0.0.1"
_EVIL = {"Origin": "https://evil.example"}
_OWNER = {"Authorization": f"Bearer {TOKEN}"}
_CHANGING = [(method, path) for method, path in TABLE if method not in {"GET", "HEAD"}]


class _Mine(dict[str, str]):
    """What stands in a path, whatever its name."""

    def __missing__(self, name: str) -> str:
        return "mine"


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "127.8.0.1", "[::1]:8080"],
)
async def test_names_of_loopback_are_answered(client: httpx.AsyncClient, host: str) -> None:
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
    async with client_of(make_app(auth="on", api_token=TOKEN)) as guarded:
        answer = await guarded.get("/v1/models", headers={"Host": host} | _OWNER)
        assert answer.status_code == 200


@pytest.mark.parametrize("auth", ["on", "off"])
@pytest.mark.parametrize(
    "told", [_EVIL, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": ""}]
)
async def test_a_foreign_page_changes_nothing(
    make_app: MakeApp, auth: str, told: dict[str, str]
) -> None:
    async with client_of(make_app(auth=auth, api_token=TOKEN)) as client:
        client.headers.update(_OWNER)
        assert (await client.put("/v1/models/mine", json={})).status_code == 201
        assert len(_CHANGING) > 20
        for method, path in _CHANGING:
            answer = await client.request(method, path.format_map(_Mine()), headers=told)
            assert answer.status_code == 403, (method, path)
            assert answer.json()["type"] == "/docs/errors#foreign-request"
        read = await client.get("/v1/models/mine", headers=told)  # whose answer no page is given
        assert read.status_code == 200
        assert "access-control-allow-origin" not in read.headers


@pytest.mark.parametrize(
    "told",
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
async def test_own_pages_and_programs_change_what_they_may(
    make_app: MakeApp, told: dict[str, str]
) -> None:
    async with client_of(make_app(api_cors_origins="https://console.example")) as client:
        assert (await client.delete("/v1/models/nothing", headers=told)).status_code == 404
    async with client_of(make_app(api_cors_origins="*")) as client:
        assert (await client.delete("/v1/models/nothing", headers=told | _EVIL)).status_code == 404
