"""Foreign pages in the browser of a user who can reach the api."""

import pytest

from tests.integration.api.conftest import OWNER, Api, MakeApp, make_client
from tests.settings import TOKEN

from .table import TABLE

_OURS = "http://127.0.0.1"
_EVIL = {"Origin": "https://evil.example"}
_CONSOLE = "https://console.example"
_CHANGING = [(method, path) for method, path in TABLE if method not in {"GET", "HEAD"}]


class _AlwaysMine(dict[str, str]):
    """Maps every path parameter to the same value."""

    def __missing__(self, name: str) -> str:
        return "mine"


async def test_without_access_control_loopback_is_answered(make_app: MakeApp, api: Api) -> None:
    loopback = ("localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "127.8.0.1")
    for host in (*loopback, "[::1]:8080"):
        assert (await api.get("/v1/models", headers={"Host": host})).status_code == 200, host
    async with make_client(make_app(auth="on", api_token=TOKEN)) as guarded:
        for host in (
            *("evil.example", "evil.example:8080", "localhost.evil.example"),
            *("127.0.0.1.evil.example", "0.0.0.0:8080", "192.0.2.7"),
            *("[2001:db8::1]", "[::1", ":8080", ""),
        ):
            for path in ("/v1/models", "/openapi.json", "/reference", "/docs/", "/nowhere"):
                answer = await api.get(path, headers={"Host": host})
                refused = (answer.status_code, answer.json()["type"])
                assert refused == (403, "/docs/errors#foreign-request"), (host, path)
            answer = await guarded.get("/v1/models", headers={"Host": host} | OWNER)
            assert answer.status_code == 200, host


@pytest.mark.parametrize("auth", ["on", "off"])
async def test_a_foreign_page_changes_nothing(make_app: MakeApp, auth: str) -> None:
    async with make_client(make_app(auth=auth, api_token=TOKEN)) as client:
        client.headers.update(OWNER)
        await client.call("PUT", "/v1/models/mine", {}, status=201)
        assert len(_CHANGING) > 20
        for headers in (
            _EVIL,
            {"Origin": "null"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": ""},
        ):
            for method, path in _CHANGING:
                path_of_mine = path.format_map(_AlwaysMine())
                answer = await client.request(method, path_of_mine, headers=headers)
                refused = (answer.status_code, answer.json()["type"])
                assert refused == (403, "/docs/errors#foreign-request"), (headers, method, path)
            # a read is answered, and the browser withholds the answer from the page
            read = await client.get("/v1/models/mine", headers=headers)
            assert read.status_code == 200, headers
            assert "access-control-allow-origin" not in read.headers, headers


async def test_accepts_changes_from_own_pages_and_programs(make_app: MakeApp) -> None:
    nothing = "/v1/models/nothing"
    async with (
        make_client(make_app(api_cors_origins=_CONSOLE)) as one,
        make_client(make_app(api_cors_origins="*")) as any_origin,
    ):
        for headers in (
            {},
            {"Origin": _OURS},
            {"Origin": _OURS, "Sec-Fetch-Site": "same-origin"},
            {"Origin": "https://behind.a.proxy.example", "Sec-Fetch-Site": "same-origin"},
            {"Sec-Fetch-Site": "none"},
            {"Origin": _CONSOLE},
            {"Origin": _CONSOLE, "Sec-Fetch-Site": "cross-site"},
        ):
            await one.call("DELETE", nothing, status=404, headers=headers)
            await any_origin.call("DELETE", nothing, status=404, headers=headers | _EVIL)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            preflight = {"Origin": _CONSOLE, "Access-Control-Request-Method": method}
            answer = await one.options("/v1/views", headers=preflight)
            assert answer.status_code == 200, method
