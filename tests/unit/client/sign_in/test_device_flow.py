"""The device flow: asked as slowly as the issuer says, and ended by what it says."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference_store_client import (
    ConnectionFailed,
    SettingsError,
    SignInFailed,
    StoreError,
    UnexpectedAnswer,
)
from inference_store_client.origin import Origin
from inference_store_client.settings import find_settings
from inference_store_client.sign_in import (
    SignIn,
    TokenCache,
    Tokens,
    check_url,
    discover,
    read_tokens,
    request_code,
    wait_for_tokens,
)
from tests.both_clients import Client
from tests.device_issuer import CLIENT, DeviceIssuer

_URL = "https://login.example/realms/ml"
_DISCOVERY = {
    "issuer": _URL,
    "token_endpoint": "https://login.example/token",
    "device_authorization_endpoint": "https://login.example/device",
}
_PLAIN, _LONG = "http://a.example", b"x" * 2_000_000
_CODE = {
    "device_code": "secret-code",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://login.example/activate",
    "expires_in": 100,
    "interval": 5,
}
_TOKENS = {"access_token": "a.b.c", "token_type": "bearer", "expires_in": 60, "refresh_token": "r"}
Reply = dict[str, Any] | str | Exception


@dataclass(slots=True)
class FakeIssuer:
    """Answers from lists, and a clock that only sleeping moves."""

    discovery: Any = field(default_factory=lambda: dict(_DISCOVERY))
    code: Any = field(default_factory=lambda: dict(_CODE))
    replies: list[Reply] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)
    sleeps: list[float] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/.well-known/openid-configuration"):
            return self._reply(self.discovery)
        self.forms.append(request.content.decode())
        return self._reply(self.code if request.url.path == "/device" else self.replies.pop(0))

    @staticmethod
    def _reply(reply: Any) -> httpx.Response:
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, httpx.Response):
            return reply
        if isinstance(reply, str):
            return httpx.Response(400, json={"error": reply})
        return httpx.Response(200, json=reply)

    def sign_in(self) -> Tokens:
        with httpx.Client(transport=httpx.MockTransport(self)) as http:
            issuer = discover(_URL, http)
            code = request_code(issuer, "istore", "openid")
            sleep, clock = self.sleeps.append, lambda: sum(self.sleeps)
            return wait_for_tokens(issuer, "istore", code, sleep=sleep, clock=clock)


def test_it_asks_until_somebody_has_entered_the_code_or_it_has_ended(
    subtests: pytest.Subtests,
) -> None:
    down = httpx.ConnectError("down")
    replies: list[Reply] = ["authorization_pending", "slow_down", "authorization_pending", down]
    fake = FakeIssuer(replies=[*replies, _TOKENS])
    tokens = fake.sign_in()
    assert fake.sleeps == [5, 5, 10, 10, 20]
    assert (tokens.access_token, tokens.refresh_token) == ("a.b.c", "r")
    assert tokens.issuer == _URL
    assert "a.b.c" not in repr(tokens)
    assert fake.forms[0] == "client_id=istore&scope=openid"
    assert "device_code=secret-code" in fake.forms[-1]
    for error, said in [
        ("access_denied", "refused in the browser"),
        ("expired_token", "has ended before anybody entered it"),
        ("invalid_client", r"login\.example/realms/ml refuses the code: invalid_client"),
    ]:
        with subtests.test(error), pytest.raises(SignInFailed, match=said):
            FakeIssuer(replies=["authorization_pending", error]).sign_in()
    waiting = FakeIssuer(replies=["authorization_pending"] * 100)
    with pytest.raises(SignInFailed, match="has ended"):
        waiting.sign_in()
    assert sum(waiting.sleeps) < 100


def test_an_answer_that_cannot_be_trusted_is_refused(subtests: pytest.Subtests) -> None:
    device = "device_authorization_endpoint"
    cases: list[tuple[str, Any, type[StoreError], str]] = [
        ("discovery", {**_DISCOVERY, "issuer": "https://other.example"}, UnexpectedAnswer, "does"),
        ("discovery", [1], UnexpectedAnswer, "no JSON object"),
        ("discovery", httpx.Response(302, headers={"location": "x"}), UnexpectedAnswer, "302"),
        ("discovery", httpx.Response(200, content=_LONG), UnexpectedAnswer, "more than"),
        ("discovery", httpx.ReadTimeout("too long"), ConnectionFailed, "too long"),
        ("discovery", {"issuer": _URL}, SettingsError, f"has no {device}"),
        ("discovery", {**_DISCOVERY, device: _PLAIN}, SettingsError, "not at https"),
        ("discovery", {**_DISCOVERY, "token_endpoint": _PLAIN}, SettingsError, "https"),
        ("code", "unauthorized_client", SignInFailed, "unauthorized_client"),
        ("code", {**_CODE, "device_code": 1}, UnexpectedAnswer, "gave no code"),
        ("code", {**_CODE, "verification_uri": _PLAIN}, SettingsError, "the page"),
        ("code", {**_CODE, "verification_uri": "https://a\x1b[2J"}, SettingsError, "the page"),
        ("replies", [{**_TOKENS, "access_token": "two words"}], SettingsError, "no bearer token"),
        ("replies", [{**_TOKENS, "token_type": "mac"}], SettingsError, "no bearer token"),
    ]
    for name, reply, error, said in cases:
        with subtests.test(f"{name}: {said}"), pytest.raises(error, match=said):
            FakeIssuer(**{name: reply}).sign_in()
    # only loopback may do without TLS
    for url in ("http://127.0.0.1:8080", "http://[::1]/x", "http://localhost/"):
        assert check_url(url, "the issuer") == url
    for url in ("http://login.example", "ftp://a", "", "https://", "http://[", "x"):
        with subtests.test(url), pytest.raises(SettingsError, match="the issuer is"):
            check_url(url, "the issuer")


# Sign-ins are kept by origin, for their owner alone, and renewed once for all who use them.

_ORIGIN = Origin("https://store.example")
_NAME = '"https://store.example:443"'


@pytest.fixture
def cache(tmp_path: Path) -> TokenCache:
    return TokenCache(tmp_path / "inference-store" / "tokens.json")


@pytest.fixture
def issuer() -> Iterator[DeviceIssuer]:
    with DeviceIssuer() as server:
        yield server


def make_tokens(issuer: DeviceIssuer, *, seconds_left: float) -> Tokens:
    tokens = read_tokens(issuer.make_tokens(), issuer.url, CLIENT)
    return replace(tokens, expires_at=time.time() + seconds_left)


def count_renewals(issuer: DeviceIssuer) -> int:
    return sum(form.get("grant_type") == "refresh_token" for _, form in issuer.forms)


def test_a_sign_in_is_kept_by_origin(cache: TokenCache, issuer: DeviceIssuer) -> None:
    tokens = make_tokens(issuer, seconds_left=100)
    with cache.lock():
        cache.put(_ORIGIN, tokens)
        cache.put(Origin("https://other.example:8443"), make_tokens(issuer, seconds_left=9))
    members = json.loads(cache.path.read_text())["https://store.example:443"]
    assert set(members) == {"issuer", "client_id", "access_token", "refresh_token", "expires_at"}
    assert cache.path.stat().st_mode & 0o777 == 0o600
    assert cache.path.parent.stat().st_mode & 0o777 == 0o700
    for url in ("https://store.example", "https://STORE.example:443/", "https://store.example/a"):
        assert cache.find(Origin(url)) == tokens
    for url in ("http://store.example", "https://store.example:444", "https://a.example"):
        assert cache.find(Origin(url)) is None
    with cache.lock():
        cache.remove(_ORIGIN)
    assert cache.find(_ORIGIN) is None
    assert cache.find(Origin("https://other.example:8443")) is not None


def test_a_file_that_is_none_or_that_others_may_read_is_refused(
    cache: TokenCache, subtests: pytest.Subtests
) -> None:
    for content in ("", "[]", "{", f'{{{_NAME}: {{"issuer": "a"}}}}', f"{{{_NAME}: 1}}"):
        write_file(cache, content)
        with subtests.test(content), pytest.raises(SettingsError, match="istore login"):
            cache.find(_ORIGIN)
    write_file(cache, "{}")
    for mode in (0o640, 0o604):
        cache.path.chmod(mode)
        with pytest.raises(SettingsError, match="chmod 600"):
            cache.find(_ORIGIN)


def write_file(cache: TokenCache, content: str) -> None:
    cache.path.parent.mkdir(exist_ok=True)
    cache.path.touch(mode=0o600)
    cache.path.write_text(content)


def test_a_key_comes_before_a_sign_in(tmp_path: Path, issuer: DeviceIssuer) -> None:
    file = tmp_path / "config.toml"
    cache = TokenCache(tmp_path / "tokens.json")
    tokens = make_tokens(issuer, seconds_left=100)
    cache.put(_ORIGIN, tokens)

    def find(url: str, key: str | None = None, **variables: str) -> str | None:
        return find_settings(url, key, environment=variables, file=file).read_key()

    assert find("https://store.example") == tokens.access_token
    assert find("https://store.example", "k") == "k"
    assert find("https://store.example", INFERENCE_STORE_KEY="k") == "k"
    assert find("https://other.example") is None


def test_what_is_ending_is_renewed_once(cache: TokenCache, issuer: DeviceIssuer) -> None:
    """Its refresh token is good for one use, and several threads and processes have it."""
    tokens = make_tokens(issuer, seconds_left=10)
    cache.put(_ORIGIN, tokens)
    sign_ins = [SignIn(_ORIGIN, TokenCache(cache.path), tokens) for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(SignIn.renew, sign_ins * 2))
    assert count_renewals(issuer) == 1
    [token] = {sign_in.tokens.access_token for sign_in in sign_ins}
    assert token != tokens.access_token
    assert cache.find(_ORIGIN) == sign_ins[0].tokens
    assert not sign_ins[0].is_ending


def test_what_has_ended_names_the_remedy_and_what_has_not_is_used(
    cache: TokenCache, issuer: DeviceIssuer
) -> None:
    for issuer.gives_refresh_tokens in (True, False):
        tokens = make_tokens(issuer, seconds_left=-1)
        cache.put(_ORIGIN, tokens)
        issuer.refresh_tokens.clear()
        with pytest.raises(SignInFailed, match="istore login"):
            SignIn(_ORIGIN, cache, tokens).renew()
    with DeviceIssuer() as away:
        tokens = make_tokens(away, seconds_left=30)
    cache.put(_ORIGIN, tokens)
    sign_in = SignIn(_ORIGIN, cache, tokens)
    sign_in.renew()
    assert sign_in.tokens == tokens


async def test_a_request_is_sent_with_the_renewed_token(
    client: Client, tmp_path: Path, issuer: DeviceIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("INFERENCE_STORE_KEY", raising=False)
    cache = TokenCache(tmp_path / ".config" / "inference-store" / "tokens.json")
    tokens = make_tokens(issuer, seconds_left=10)
    with cache.lock():
        cache.put(_ORIGIN, tokens)
    sent: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append((request.url.host, request.headers.get("authorization")))
        return httpx.Response(200, json={"count": 3, "warnings": []})

    store: Any = client.make_answered(answer)
    assert await client.ask(store.model("m").inferences().count) == 3
    renewed = cache.find(_ORIGIN)
    assert renewed is not None
    assert renewed.access_token != tokens.access_token
    assert sent == [("store.example", f"Bearer {renewed.access_token}")]
    assert count_renewals(issuer) == 1
