"""Sign-in at an issuer: the api exchanges the code, and accepts no answer to another browser."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import httpx
import pytest
from sqlalchemy import func, select
from structlog.testing import capture_logs

from inference_store.access import sign_in
from inference_store.access import tokens as issuer_keys
from inference_store.api.authentication import COOKIE
from inference_store.index.tables import web_session
from tests.integration.api.conftest import Api, MakeApp, make_client

from .oidc_issuer import AUDIENCE, CLIENT, CLIENT_SECRET, OidcIssuer, make_jwk, make_rsa_key
from .test_sessions import Browser

_KEY, _OTHER_KEY = make_rsa_key(), make_rsa_key()
_BEGIN, _CALLBACK = "/v1/session/oidc/begin", "/v1/session/oidc/callback"
_ATTEMPT = "__Host-inference-store-sign-in"
_HERE = "http://127.0.0.1"
_ROLES = {"analysts": [{"role": "analyst"}], "ops": [{"role": "owner"}]}


@pytest.fixture(autouse=True)
def patient_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store waits for the issuer, however busy the machine is."""
    for module in (issuer_keys, sign_in):
        monkeypatch.setattr(module, "TIMEOUT_SECONDS", 600.0)


@pytest.fixture
async def issuer() -> AsyncIterator[OidcIssuer]:
    async with OidcIssuer() as server:
        server.keys = [make_jwk("rsa", _KEY)]
        server.signer = _KEY, "rsa"
        yield server


@pytest.fixture
def oidc_settings(issuer: OidcIssuer) -> dict[str, Any]:
    return {
        "auth": "on",
        "oidc_issuer": issuer.url,
        "oidc_audience": AUDIENCE,
        "oidc_roles": _ROLES,
        "oidc_client_id": CLIENT,
        "oidc_client_secret": CLIENT_SECRET,
        "api_public_url": _HERE,
    }


@pytest.fixture
async def client(make_app: MakeApp, oidc_settings: dict[str, Any]) -> AsyncIterator[Api]:
    async with make_client(make_app(**oidc_settings)) as http_client:
        yield http_client


class Visitor(Browser):
    """A browser that signs in at the issuer; httpx does not keep its cookies."""

    def __init__(self, client: Api) -> None:
        super().__init__(client)
        self.attempt = ""

    async def begin(self) -> str:
        answer = await self.client.get(_BEGIN)
        assert answer.status_code == 303
        self.attempt = _read_cookies(answer).get(_ATTEMPT, "")
        return answer.headers["location"]

    async def visit(self, url: str) -> str:
        """Sign in at the issuer; return the URL that it redirects to."""
        async with httpx.AsyncClient(timeout=120) as outside:
            answer = await outside.get(url)
        assert answer.status_code == 302
        return str(answer.headers["location"])

    async def come_back(self, url: str) -> str:
        """Return from the issuer; return the URL that the api redirects to."""
        path = url.removeprefix(_HERE)
        headers = {"Sec-Fetch-Site": "cross-site", "Cookie": f"{_ATTEMPT}={self.attempt}"}
        answer = await self.client.get(path, headers=headers)
        assert answer.status_code == 303
        assert f'{_ATTEMPT}=""' in answer.headers.get_list("set-cookie")[0]
        self.id = _read_cookies(answer).get(COOKIE, "")
        return str(answer.headers["location"])

    async def sign_in_there(self) -> str:
        """Sign in completely; return the URL that the api redirects to."""
        return await self.come_back(await self.visit(await self.begin()))


def _read_cookies(answer: httpx.Response) -> dict[str, str]:
    jar: SimpleCookie = SimpleCookie()
    for line in answer.headers.get_list("set-cookie"):
        jar.load(line)
    return {name: morsel.value for name, morsel in jar.items() if morsel.value}


@pytest.fixture
def visitor(client: Api) -> Visitor:
    return Visitor(client)


async def test_signing_in(visitor: Visitor, issuer: OidcIssuer) -> None:
    before, lasting = datetime.now(UTC), timedelta(seconds=300)  # as long as the token
    assert await visitor.sign_in_there() == f"{_HERE}/console/"
    caller = await visitor.read_caller()
    assert (caller["name"], caller["kind"], caller["display_name"]) == ("oidc:ada", "oidc", "ada")
    assert caller["rights"] == ["read", "read_inputs", "annotate", "export"]
    expires_at = datetime.fromisoformat(caller["session"]["expires_at"])
    # the token's times are whole seconds
    assert before - timedelta(seconds=1) < expires_at - lasting <= datetime.now(UTC)
    assert len(issuer.exchanges) == 1
    assert (await visitor.ask("DELETE", "/v1/session")).status_code == 204
    assert await visitor.status() == 401


async def test_sends_state_nonce_and_challenge_and_offers_sign_in_without_a_key(
    visitor: Visitor, client: Api, guarded: Api
) -> None:
    answer = await client.get(_BEGIN)
    line = answer.headers["set-cookie"]
    assert {"HttpOnly", "Secure", "Path=/", "SameSite=lax", "Max-Age=600"} <= set(line.split("; "))
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    assert query["redirect_uri"] == [_HERE + _CALLBACK]
    values = [query[name][0] for name in ("state", "nonce", "code_challenge")]
    assert len({*values, _read_cookies(answer)[_ATTEMPT]}) == 4
    again = parse_qs(urlsplit(await visitor.begin()).query)
    assert not {*values} & {value for values in again.values() for value in values}
    assert await client.read("/v1/session/ways") == {
        "oidc": {"name": "127.0.0.1", "url": _HERE + _BEGIN},
        "device": None,
    }
    assert await guarded.read("/v1/session/ways") == {"oidc": None, "device": None}
    for path in (_BEGIN, _CALLBACK):
        assert (await guarded.get(path)).status_code == 404


async def _check_refused(visitor: Visitor, url: str, reason: str = "refused") -> None:
    assert await visitor.come_back(url) == f"{_HERE}/console/?sign-in={reason}", url
    assert not visitor.id


def _change_query(url: str, **changes: str) -> str:
    parts = urlsplit(url)
    return parts._replace(query=urlencode({**dict(parse_qsl(parts.query)), **changes})).geturl()


def _remove_from_query(url: str, name: str) -> str:
    parts = urlsplit(url)
    rest = [(key, value) for key, value in parse_qsl(parts.query) if key != name]
    return parts._replace(query=urlencode(rest)).geturl()


def _read_state(url: str) -> str:
    return parse_qs(urlsplit(url).query)["state"][0]


async def test_an_answer_to_another_browser_signs_nobody_in(
    visitor: Visitor, client: Api, issuer: OidcIssuer
) -> None:
    """An attacker begins to sign in, and sends a victim to the last step."""
    attacker = Visitor(client)
    theirs = await attacker.visit(await attacker.begin())
    await _check_refused(visitor, theirs, "expired")
    await visitor.begin()
    await _check_refused(visitor, theirs)
    assert not issuer.exchanges
    assert await client.fetch(select(func.count()).select_from(web_session)) == [0]


async def test_refuses_changed_answers(visitor: Visitor, issuer: OidcIssuer) -> None:
    for changes in ({"state": "x"}, {"state": ""}, {"code": "x"}, {"iss": "https://evil.example"}):
        url = await visitor.visit(await visitor.begin())
        await _check_refused(visitor, _change_query(url, **changes))
    issuer.signer = _OTHER_KEY, "rsa"  # a token of another key
    await _check_refused(visitor, await visitor.visit(await visitor.begin()))


async def test_an_issuer_that_names_itself_in_its_answers_does_so_in_each(
    make_app: MakeApp, oidc_settings: dict[str, Any], issuer: OidcIssuer
) -> None:
    """RFC 9207: an answer without `iss` may be that of another issuer, which the browser was sent
    to instead."""
    for supported, refused in ((True, True), (False, False), (None, False)):
        issuer.discovery = {"authorization_response_iss_parameter_supported": supported}
        async with make_client(make_app(**oidc_settings)) as client:
            visitor = Visitor(client)
            url = await visitor.visit(await visitor.begin())
            await _check_refused(visitor, _change_query(url, iss="https://evil.example"))
            exchanges = len(issuer.exchanges)
            url = _remove_from_query(await visitor.visit(await visitor.begin()), "iss")
            if refused:
                await _check_refused(visitor, url)
                assert len(issuer.exchanges) == exchanges
            assert await visitor.sign_in_there() == f"{_HERE}/console/", supported
            if not refused:
                url = _remove_from_query(await visitor.visit(await visitor.begin()), "iss")
                assert await visitor.come_back(url) == f"{_HERE}/console/", supported


async def test_a_code_works_once_and_a_refusal_ends_its_attempt(
    visitor: Visitor, client: Api
) -> None:
    url = await visitor.visit(await visitor.begin())
    other = Visitor(client)
    state = _read_state(await other.begin())
    await _check_refused(other, _change_query(url, state=state))  # a stolen code: PKCE
    await _check_refused(visitor, url)  # the issuer gives tokens for a code once
    # The log says why.
    state = _read_state(await visitor.begin())
    with capture_logs() as lines:
        await _check_refused(visitor, f"{_CALLBACK}?error=access_denied&state={state}")
    [refusal] = [line for line in lines if line["action"] == "sign_in_refused"]
    assert refusal["error"] == "The issuer refused: access_denied."
    assert refusal["client"]


async def test_refuses_invalid_id_tokens(visitor: Visitor, issuer: OidcIssuer) -> None:
    cases: list[dict[str, Any]] = [
        {"nonce": "another"},
        {"nonce": ...},
        {"aud": AUDIENCE},
        {"aud": "another-client"},
        {"azp": "another-client"},
        {"iss": "https://evil.example"},
        {"exp": int(time.time()) - 3600},
        {"exp": 253_402_300_800},  # the year 10000
        {"exp": 10**18},
        {"sub": "bob"},
    ]
    for claims in cases:
        issuer.id_claims = claims
        await _check_refused(visitor, await visitor.visit(await visitor.begin()))
    issuer.id_claims = {}
    await visitor.sign_in_there()
    assert await visitor.status() == 200


async def test_uses_id_token_without_access_token_for_the_store(
    visitor: Visitor, issuer: OidcIssuer
) -> None:
    at = int(time.time()) + 1000
    issuer.id_claims = {"roles": ["ops"], "exp": at}
    for token in ("opaque", issuer.make_token(_KEY, "rsa", aud="another")):
        issuer.access_token = token
        await visitor.sign_in_there()
        caller = await visitor.read_caller()
        assert "admin" in caller["rights_over_everything"], token
        expires_at = datetime.fromisoformat(caller["session"]["expires_at"])
        assert expires_at.timestamp() == at, token


@pytest.mark.parametrize("way", ["public", "form"])
async def test_other_ways_to_authenticate_the_client(
    make_app: MakeApp, oidc_settings: dict[str, Any], issuer: OidcIssuer, way: str
) -> None:
    issuer.is_public = way == "public"
    if way == "form":
        issuer.discovery = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    secret = {"oidc_client_secret": None if way == "public" else CLIENT_SECRET}
    async with make_client(make_app(**oidc_settings | secret)) as client:
        assert await Visitor(client).sign_in_there() == f"{_HERE}/console/"


@pytest.mark.parametrize("way", ["stopped", "silent"])
async def test_issuer_is_unavailable(
    visitor: Visitor,
    issuer: OidcIssuer,
    make_app: MakeApp,
    oidc_settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    url = await visitor.visit(await visitor.begin())
    if way == "stopped":
        await issuer.stop()
    else:
        monkeypatch.setattr(sign_in, "TIMEOUT_SECONDS", 0.0)
    await _check_refused(visitor, url, "unavailable")
    async with make_client(make_app(**oidc_settings)) as client:
        answer = await client.get(_BEGIN)
        assert answer.headers["location"] == f"{_HERE}/console/?sign-in=unavailable"


async def test_session_ends_when_the_settings_drop_its_issuer(
    visitor: Visitor, make_app: MakeApp, oidc_settings: dict[str, Any]
) -> None:
    await visitor.sign_in_there()
    everything = ["read", "read_inputs", "annotate", "export"]
    for changes, rights in (
        ({}, everything),
        ({"oidc_issuer": "http://127.0.0.1:9"}, None),
        ({"oidc_roles": {}}, []),
    ):
        async with make_client(make_app(**oidc_settings | changes)) as client:
            caller = await Browser(client, visitor.id).read_caller()
            assert caller.get("rights") == rights, changes


async def test_made_up_answers_are_limited(
    make_app: MakeApp, oidc_settings: dict[str, Any]
) -> None:
    """Each of them would cause a request to the issuer."""
    app = make_app(**oidc_settings, api_failed_tokens_per_minute=2)
    async with make_client(app) as client:
        visitor = Visitor(client)
        for reason in ("refused", "refused", "later"):
            url = await visitor.visit(await visitor.begin())
            await _check_refused(visitor, _change_query(url, code="made-up"), reason)
