"""The device flow: asked as slowly as the issuer says, and ended by what it says."""

from dataclasses import dataclass, field
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
from inference_store_client.sign_in.device_flow import request_code, wait_for_tokens
from inference_store_client.sign_in.issuer import check_url, discover
from inference_store_client.sign_in.tokens import Tokens

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


def test_it_asks_until_somebody_has_entered_the_code() -> None:
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


def test_a_refusal_ends_it(subtests: pytest.Subtests) -> None:
    for error, said in [
        ("access_denied", "refused in the browser"),
        ("expired_token", "has ended before anybody entered it"),
        ("invalid_client", r"login\.example/realms/ml refuses the code: invalid_client"),
    ]:
        with subtests.test(error), pytest.raises(SignInFailed, match=said):
            FakeIssuer(replies=["authorization_pending", error]).sign_in()


def test_it_does_not_wait_longer_than_the_code_is_good() -> None:
    fake = FakeIssuer(replies=["authorization_pending"] * 100)
    with pytest.raises(SignInFailed, match="has ended"):
        fake.sign_in()
    assert sum(fake.sleeps) < 100


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


def test_only_loopback_may_do_without_tls(subtests: pytest.Subtests) -> None:
    for url in ("http://127.0.0.1:8080", "http://[::1]/x", "http://localhost/"):
        assert check_url(url, "the issuer") == url
    for url in ("http://login.example", "ftp://a", "", "https://", "http://[", "x"):
        with subtests.test(url), pytest.raises(SettingsError, match="the issuer is"):
            check_url(url, "the issuer")
