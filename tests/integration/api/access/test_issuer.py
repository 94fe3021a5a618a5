"""Tokens of a real issuer: verification, rights, changing keys, an unavailable issuer."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from fastapi import FastAPI

from inference_store.access import tokens as issuer_keys
from inference_store.access.tokens import SKEW_SECONDS, Issuer, Tokens
from tests.integration.api.conftest import Api, MakeApp, make_client
from tests.polling import until
from tests.stopped_clock import StoppedClock

from .conftest import OPEN
from .oidc_issuer import AUDIENCE, OidcIssuer, make_ec_key, make_jwk, make_rsa_key

RSA, OTHER_RSA, EC = make_rsa_key(), make_rsa_key(), make_ec_key()
ED = ed25519.Ed25519PrivateKey.generate()
RETRY_SECONDS = 10.0
# Long enough for any machine: the test of the limit sets its own.
PATIENT_SECONDS = 600.0
_ROLES = {
    "analysts": [{"role": "analyst", "project_id": f"{OPEN}-project"}],
    "ops": [{"role": "owner"}],
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StoppedClock:
    """The clock by which keys grow old and the issuer may be asked again."""
    stopped = StoppedClock()
    monkeypatch.setattr(issuer_keys, "time", stopped)
    return stopped


@pytest.fixture
async def issuer() -> AsyncIterator[OidcIssuer]:
    async with OidcIssuer() as server:
        server.keys = [
            make_jwk("rsa", RSA),
            make_jwk("ec", EC, alg="ES256", use="sig"),
            make_jwk("ed", ED),
            make_jwk("for-encryption", OTHER_RSA, use="enc"),
            {"kty": "oct", "kid": "shared", "k": "c2VjcmV0" * 8},
            {"kty": "RSA", "kid": "broken"},
        ]
        yield server


@pytest.fixture
def app(make_app: MakeApp, issuer: OidcIssuer, clock: StoppedClock) -> FastAPI:  # noqa: ARG001
    app = make_app(auth="on", oidc_issuer=issuer.url, oidc_audience=AUDIENCE, oidc_roles=_ROLES)
    _change_issuer(app, issuer)
    return app


def _change_issuer(app: FastAPI, issuer: OidcIssuer, **changes: Any) -> None:
    """Let the app read the issuer's keys anew, with other limits."""
    limits: dict[str, Any] = {"retry_seconds": RETRY_SECONDS, "timeout_seconds": PATIENT_SECONDS}
    app.state.authenticator.tokens = Tokens(
        app.state.settings, Issuer(issuer.url, **limits | changes)
    )


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[Api]:
    async with make_client(app) as http_client:
        yield http_client


async def _status(client: Api, token: str, path: str = "/v1/models") -> int:
    answer = await client.get(path, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code


async def test_accepts_every_type_of_key_but_weak_ones(client: Api, issuer: OidcIssuer) -> None:
    for key, kid, algorithm in (
        (RSA, "rsa", "RS256"),
        (RSA, "rsa", "PS512"),
        (EC, "ec", "ES256"),
        (ED, "ed", "EdDSA"),
        (RSA, None, "RS256"),  # a key id may be left out if one key fits
    ):
        token = issuer.make_token(key, kid, algorithm=algorithm)
        assert await _status(client, token) == 200, (kid, algorithm)
        assert issuer.fetches == 1, (kid, algorithm)
    weak = make_rsa_key(1024)
    issuer.keys = [make_jwk("weak", weak)]
    with pytest.warns(jwt.warnings.InsecureKeyLengthWarning):
        token = issuer.make_token(weak, "weak")
    assert await _status(client, token) == 401


@pytest.mark.usefixtures("two_models")
async def test_claims_become_rights(client: Api, issuer: OidcIssuer) -> None:
    analyst = {"Authorization": f"Bearer {issuer.make_token(RSA, 'rsa')}"}
    ops = {"Authorization": f"Bearer {issuer.make_token(RSA, 'rsa', roles='ops')}"}
    models = (await client.call("GET", "/v1/models", headers=analyst))["items"]
    assert [item["model_id"] for item in models] == [OPEN]
    path = f"/v1/models/{OPEN}/inferences/one"
    await client.call("GET", f"{path}/data", status=200, headers=analyst)
    await client.call("DELETE", path, status=403, headers=analyst)
    assert len((await client.call("GET", "/v1/models", headers=ops))["items"]) == 2
    audit = (await client.call("GET", "/v1/audit", headers=ops))["items"]
    assert [(item["actor"], item["action"]) for item in audit] == [("oidc:ada", "data_read")]
    for roles in ([], "stranger", ["stranger"], {"ops": True}, 5, ...):
        token = issuer.make_token(RSA, "rsa", roles=roles)
        assert await _status(client, token) == 403, roles
        assert await _status(client, token, f"/v1/models/{OPEN}") == 404, roles
    # keys of a bearer outlive the token and name the bearer: they can be found and revoked
    body = {"name": "x", "grants": [{"role": "reader"}]}
    key = await client.ask("/v1/keys", body, status=201, headers=ops)
    assert (key["created_by"], key["expires_at"]) == ("oidc:ada", None)
    await client.ask("/v1/keys", body, status=403, headers=analyst)


async def test_tokens_that_are_refused(client: Api, issuer: OidcIssuer) -> None:
    now = time.time()
    good = issuer.make_token(RSA, "rsa")
    head, claims, signature = good.split(".")
    public = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    refused = {
        "expired": issuer.make_token(RSA, "rsa", exp=now - SKEW_SECONDS - 1),
        "not yet": issuer.make_token(RSA, "rsa", nbf=now + 2 * SKEW_SECONDS),
        "issued in the future": issuer.make_token(RSA, "rsa", iat=now + 2 * SKEW_SECONDS),
        "audience": issuer.make_token(RSA, "rsa", aud="another"),
        "no audience": issuer.make_token(RSA, "rsa", aud=...),
        "issuer": issuer.make_token(RSA, "rsa", iss="https://evil.example"),
        "no expiry": issuer.make_token(RSA, "rsa", exp=...),
        "no subject": issuer.make_token(RSA, "rsa", sub=...),
        "empty subject": issuer.make_token(RSA, "rsa", sub=""),
        "long subject": issuer.make_token(RSA, "rsa", sub="x" * 201),
        "unprintable subject": issuer.make_token(RSA, "rsa", sub="a\u200bda"),
        "another's key": issuer.make_token(OTHER_RSA, "rsa"),
        "key of another use": issuer.make_token(OTHER_RSA, "for-encryption"),
        "algorithm of another key": issuer.make_token(RSA, "ec"),
        "shared secret": issuer.make_token("c2VjcmV0" * 8, "shared", algorithm="HS256"),
        "public key as a secret": _sign_with(public, claims),
        "no signature": f"{_encode_part({'alg': 'none', 'kid': 'rsa'})}.{claims}.",
        "changed": f"{head}.{_encode_part({'iss': issuer.url, 'sub': 'root'})}.{signature}",
        "cut": good[:-4],
        "no JSON": "a.b.c",
        "many points": good + ".x",
    }
    statuses = {name: await _status(client, token) for name, token in refused.items()}
    assert statuses == dict.fromkeys(refused, 401)
    for changes in ({"exp": now - 20}, {"nbf": now + 20}, {"aud": ["another", AUDIENCE]}):
        assert await _status(client, issuer.make_token(RSA, "rsa", **changes)) == 200, changes


async def test_times_beyond_the_calendar_are_refused(client: Api, issuer: OidcIssuer) -> None:
    for beyond in (253_402_300_800, 10**15, 10**18, 1e300, 10**400):  # the year 10000, and later
        headers = {"Authorization": f"Bearer {issuer.make_token(RSA, 'rsa', exp=beyond)}"}
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/session")):
            answer = await client.request(method, path, headers=headers)
            assert (answer.status_code, "`exp`" in answer.text) == (401, True), (path, beyond)
    token = issuer.make_token(RSA, "rsa", nbf=10**18)
    assert await _status(client, token) == 401


def _encode_part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def _sign_with(secret: bytes, claims: str) -> str:
    """Sign with HS256 and the issuer's public key as the secret, the oldest of these attacks."""
    document = json.loads(base64.urlsafe_b64decode(claims + "=="))
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signed = f"{_encode_part({'alg': 'HS256', 'kid': 'rsa'})}.{_encode_part(document)}"
    signature = base64.urlsafe_b64encode(algorithm.sign(signed.encode(), secret)).rstrip(b"=")
    return f"{signed}.{signature.decode()}"


async def test_fetches_keys_again_when_they_change_but_not_for_each_unknown_one(
    client: Api, issuer: OidcIssuer, clock: StoppedClock
) -> None:
    assert await _status(client, issuer.make_token(RSA, "rsa")) == 200
    new = make_rsa_key()
    issuer.keys = [make_jwk("new", new)]
    token = issuer.make_token(new, "new")
    for number in range(20):
        assert await _status(client, issuer.make_token(RSA, f"unknown-{number}")) == 401
    assert (await _status(client, token), issuer.fetches) == (401, 1)
    clock.now += RETRY_SECONDS
    assert (await _status(client, token), issuer.fetches) == (200, 2)
    assert await _status(client, issuer.make_token(RSA, "rsa")) == 401


async def test_issuer_is_unavailable(client: Api, issuer: OidcIssuer, clock: StoppedClock) -> None:
    await issuer.stop()
    token = issuer.make_token(RSA, "rsa")
    away = await client.get("/v1/models", headers={"Authorization": f"Bearer {token}"})
    assert (away.status_code, away.headers["retry-after"]) == (503, "5")
    # the reason is in the log
    assert away.json()["detail"] == f"The issuer {issuer.url} is unavailable."
    assert token not in away.text
    # A key of the store is refused as before, since it needs no issuer.
    assert await _status(client, "isk_wrong") == 401
    await issuer.start()
    assert await _status(client, token) == 503
    clock.now += RETRY_SECONDS
    assert await _status(client, token) == 200
    await issuer.stop()  # known keys are used while it is unavailable
    clock.now += RETRY_SECONDS
    assert await _status(client, token) == 200
    await issuer.start()


async def test_hanging_issuer_does_not_delay_known_keys(
    app: FastAPI, client: Api, issuer: OidcIssuer
) -> None:
    # its keys are old at once, and a fetch outlasts the test
    _change_issuer(app, issuer, retry_seconds=0, fresh_seconds=0)
    token = issuer.make_token(RSA, "rsa")
    assert await _status(client, token) == 200
    issuer.answers.clear()
    async with asyncio.timeout(300):
        statuses = await asyncio.gather(*(_status(client, token) for _ in range(20)))
        assert statuses == [200] * 20

        async def count_fetches() -> int:
            return issuer.fetches

        assert await until(count_fetches, lambda fetches: fetches > 1) == 2  # one for all of them
        new = make_rsa_key()
        issuer.keys = [make_jwk("new", new)]
        waiting = asyncio.create_task(_status(client, issuer.make_token(new, "new")))
        assert await _status(client, token) == 200
        assert not waiting.done()
        issuer.answers.set()  # its late answer is used: the old key is withdrawn
        assert await waiting == 200
        assert await _status(client, token) == 401
        assert issuer.fetches == 3


async def test_hanging_issuer_times_out(app: FastAPI, client: Api, issuer: OidcIssuer) -> None:
    _change_issuer(app, issuer, timeout_seconds=0)
    issuer.answers.clear()
    bearer = {"Authorization": f"Bearer {issuer.make_token(RSA, 'rsa')}"}
    answer = await client.get("/v1/models", headers=bearer)
    assert (answer.status_code, f"issuer {issuer.url} is unavailable" in answer.text) == (503, True)


async def test_rejects_untrusted_discovery_document(
    client: Api, issuer: OidcIssuer, clock: StoppedClock
) -> None:
    cases: list[dict[str, Any]] = [
        {"issuer": "https://evil.example"},
        {"jwks_uri": None},
        {"jwks_uri": "file:///etc/passwd"},
    ]
    for discovery in cases:
        issuer.discovery = discovery
        assert await _status(client, issuer.make_token(RSA, "rsa")) == 503, discovery
        assert issuer.fetches == 0, discovery
        clock.now += RETRY_SECONDS
