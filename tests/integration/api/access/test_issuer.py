"""Tokens of a real issuer: verified, mapped to rights; keys that change; an issuer that is away."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from fastapi import FastAPI

from inference_store.access.issuer import Issuer
from inference_store.access.tokens import Tokens
from tests.integration.api.conftest import MakeApp, client_of
from tests.polling import until

from .an_issuer import AUDIENCE, AnIssuer, ec_key, jwk_of, rsa_key
from .conftest import OPEN

RSA, OTHER_RSA, EC = rsa_key(), rsa_key(), ec_key()
ED = ed25519.Ed25519PrivateKey.generate()
RETRY_SECONDS = 0.3
_ROLES = {
    "analysts": [{"role": "analyst", "project_id": f"{OPEN}-project"}],
    "ops": [{"role": "owner"}],
}


@pytest.fixture
async def issuer() -> AsyncIterator[AnIssuer]:
    async with AnIssuer() as made:
        made.keys = [
            jwk_of("rsa", RSA),
            jwk_of("ec", EC, alg="ES256", use="sig"),
            jwk_of("ed", ED),
            jwk_of("for-encryption", OTHER_RSA, use="enc"),
            {"kty": "oct", "kid": "shared", "k": "c2VjcmV0" * 8},
            {"kty": "RSA", "kid": "broken"},
        ]
        yield made


@pytest.fixture
def app(make_app: MakeApp, issuer: AnIssuer) -> FastAPI:
    app = make_app(
        auth="on",
        oidc_issuer=issuer.url,
        oidc_audience=AUDIENCE,
        oidc_roles=_ROLES,
        oidc_clock_skew_seconds=30,
    )
    known = Issuer(issuer.url, retry_seconds=RETRY_SECONDS)
    app.state.authenticator.tokens = Tokens(app.state.settings, known)
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as made:
        yield made


async def _status(client: httpx.AsyncClient, token: str, path: str = "/v1/models") -> int:
    answer = await client.get(path, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"),
    [(RSA, "rsa", "RS256"), (RSA, "rsa", "PS512"), (EC, "ec", "ES256"), (ED, "ed", "EdDSA")],
)
async def test_tokens_of_every_kind_of_key(
    client: httpx.AsyncClient, issuer: AnIssuer, key: Any, kid: str, algorithm: str
) -> None:
    token = issuer.token(key, kid, algorithm=algorithm)
    assert await _status(client, token) == 200
    assert issuer.fetches == 1


async def test_a_token_without_a_key_id_where_one_key_fits(
    client: httpx.AsyncClient, issuer: AnIssuer
) -> None:
    assert await _status(client, issuer.token(RSA, None)) == 200


@pytest.mark.usefixtures("two_models")
async def test_claims_become_rights(client: httpx.AsyncClient, issuer: AnIssuer) -> None:
    headers = {"Authorization": f"Bearer {issuer.token(RSA, 'rsa')}"}
    listed = (await client.get("/v1/models", headers=headers)).json()["items"]
    assert [each["model_id"] for each in listed] == [OPEN]
    one = f"/v1/models/{OPEN}/inferences/one"
    assert (await client.get(f"{one}/data", headers=headers)).status_code == 200
    assert (await client.delete(one, headers=headers)).status_code == 403
    ops = {"Authorization": f"Bearer {issuer.token(RSA, 'rsa', roles='ops')}"}
    assert len((await client.get("/v1/models", headers=ops)).json()["items"]) == 2
    audit = (await client.get("/v1/audit", headers=ops)).json()["items"]
    assert [(each["actor"], each["action"]) for each in audit] == [("oidc:ada", "data_read")]
    for nothing in ([], "stranger", ["stranger"], {"ops": True}, 5, ...):
        token = issuer.token(RSA, "rsa", roles=nothing)
        assert await _status(client, token) == 403
        assert await _status(client, token, f"/v1/models/{OPEN}") == 404


async def test_keys_of_a_bearer_outlive_the_token_and_name_the_bearer(
    client: httpx.AsyncClient, issuer: AnIssuer
) -> None:
    """So that they can be listed and revoked when the bearer's right ends."""
    ops = {"Authorization": f"Bearer {issuer.token(RSA, 'rsa', roles='ops')}"}
    body = {"name": "x", "grants": [{"role": "reader"}]}
    made = (await client.post("/v1/keys", json=body, headers=ops)).json()
    assert (made["created_by"], made["expires_at"]) == ("oidc:ada", None)
    weaker = {"Authorization": f"Bearer {issuer.token(RSA, 'rsa')}"}
    assert (await client.post("/v1/keys", json=body, headers=weaker)).status_code == 403


async def test_tokens_that_are_refused(client: httpx.AsyncClient, issuer: AnIssuer) -> None:
    now = time.time()
    good = issuer.token(RSA, "rsa")
    head, claims, signature = good.split(".")
    public = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    refused = {
        "expired": issuer.token(RSA, "rsa", exp=now - 31),
        "not yet": issuer.token(RSA, "rsa", nbf=now + 40),
        "issued in the future": issuer.token(RSA, "rsa", iat=now + 400),
        "audience": issuer.token(RSA, "rsa", aud="another"),
        "no audience": issuer.token(RSA, "rsa", aud=...),
        "issuer": issuer.token(RSA, "rsa", iss="https://evil.example"),
        "no expiry": issuer.token(RSA, "rsa", exp=...),
        "no subject": issuer.token(RSA, "rsa", sub=...),
        "empty subject": issuer.token(RSA, "rsa", sub=""),
        "long subject": issuer.token(RSA, "rsa", sub="x" * 201),
        "unprintable subject": issuer.token(RSA, "rsa", sub="a\u200bda"),
        "another's key": issuer.token(OTHER_RSA, "rsa"),
        "key of another use": issuer.token(OTHER_RSA, "for-encryption"),
        "algorithm of another key": issuer.token(RSA, "ec"),
        "shared secret": issuer.token("c2VjcmV0" * 8, "shared", algorithm="HS256"),
        "public key as a secret": _signed_with(public, claims),
        "no signature": f"{_encoded({'alg': 'none', 'kid': 'rsa'})}.{claims}.",
        "changed": f"{head}.{_encoded({'iss': issuer.url, 'sub': 'root'})}.{signature}",
        "cut": good[:-4],
        "no JSON": "a.b.c",
        "many points": good + ".x",
    }
    statuses = {name: await _status(client, token) for name, token in refused.items()}
    assert statuses == dict.fromkeys(refused, 401)
    for changes in ({"exp": now - 20}, {"nbf": now + 20}, {"aud": ["another", AUDIENCE]}):
        assert await _status(client, issuer.token(RSA, "rsa", **changes)) == 200, changes


def _encoded(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def _signed_with(secret: bytes, claims: str) -> str:
    """HS256 with the issuer's public key as the secret: the oldest of these attacks."""
    told = json.loads(base64.urlsafe_b64decode(claims + "=="))
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signed = f"{_encoded({'alg': 'HS256', 'kid': 'rsa'})}.{_encoded(told)}"
    made = base64.urlsafe_b64encode(algorithm.sign(signed.encode(), secret)).rstrip(b"=")
    return f"{signed}.{made.decode()}"


async def test_keys_are_fetched_once_and_anew_when_they_change(
    client: httpx.AsyncClient, issuer: AnIssuer
) -> None:
    assert await _status(client, issuer.token(RSA, "rsa")) == 200
    new = rsa_key()
    issuer.keys = [jwk_of("new", new)]
    token = issuer.token(new, "new")

    async def works() -> bool:
        return await _status(client, token) == 200

    assert await until(works, bool)
    assert await _status(client, issuer.token(RSA, "rsa")) == 401


async def test_unknown_key_ids_do_not_make_us_fetch_each_time(
    client: httpx.AsyncClient, issuer: AnIssuer
) -> None:
    began = time.monotonic()
    for number in range(20):
        assert await _status(client, issuer.token(RSA, f"unknown-{number}")) == 401
    assert issuer.fetches <= 1 + (time.monotonic() - began) / RETRY_SECONDS


async def test_an_issuer_that_is_away(client: httpx.AsyncClient, issuer: AnIssuer) -> None:
    await issuer.stop()
    token = issuer.token(RSA, "rsa")
    headers = {"Authorization": f"Bearer {token}"}
    away = await client.get("/v1/models", headers=headers)
    assert (away.status_code, away.headers["retry-after"]) == (503, "5")
    assert away.json()["detail"] == f"The issuer {issuer.url} is away."  # why is in the log
    assert token not in away.text
    # A key that is no token is refused as ever: it needs no issuer.
    assert await _status(client, "isk_wrong") == 401
    await issuer.start()

    async def works() -> bool:
        return await _status(client, token) == 200

    assert await until(works, bool)
    await issuer.stop()  # what is known is used while it is away
    assert await works()
    await issuer.start()


async def test_an_issuer_that_hangs_holds_nobody_whose_key_is_known(
    app: FastAPI, client: httpx.AsyncClient, issuer: AnIssuer
) -> None:
    # its keys are old at once, and a fetch outlasts the test
    known = Issuer(issuer.url, retry_seconds=0, fresh_seconds=0, timeout_seconds=600)
    app.state.authenticator.tokens = Tokens(app.state.settings, known)
    token = issuer.token(RSA, "rsa")
    assert await _status(client, token) == 200
    issuer.answers.clear()
    async with asyncio.timeout(60):
        statuses = await asyncio.gather(*(_status(client, token) for _ in range(20)))
        assert statuses == [200] * 20
        assert issuer.fetches == 2  # one fetch runs, for all of them
        new = rsa_key()
        issuer.keys = [jwk_of("new", new)]
        waiting = asyncio.create_task(_status(client, issuer.token(new, "new")))
        assert await _status(client, token) == 200
        assert not waiting.done()
        issuer.answers.set()  # what it says at last is taken: the old key is withdrawn
        assert await waiting == 200
        assert await _status(client, token) == 401
        assert issuer.fetches == 3


async def test_an_issuer_that_hangs_is_away_after_a_while(
    app: FastAPI, client: httpx.AsyncClient, issuer: AnIssuer
) -> None:
    known = Issuer(issuer.url, retry_seconds=0, timeout_seconds=0.2)
    app.state.authenticator.tokens = Tokens(app.state.settings, known)
    issuer.answers.clear()
    assert await _status(client, issuer.token(RSA, "rsa")) == 503
    issuer.answers.set()

    async def works() -> bool:
        return await _status(client, issuer.token(RSA, "rsa")) == 200

    assert await until(works, bool)


@pytest.mark.parametrize(
    "discovery",
    [{"issuer": "https://evil.example"}, {"jwks_uri": None}, {"jwks_uri": "file:///etc/passwd"}],
)
async def test_a_discovery_that_is_not_to_be_trusted(
    client: httpx.AsyncClient, issuer: AnIssuer, discovery: dict[str, Any]
) -> None:
    issuer.discovery = discovery
    assert await _status(client, issuer.token(RSA, "rsa")) == 503
    assert issuer.fetches == 0


async def test_weak_keys_are_passed_over(client: httpx.AsyncClient, issuer: AnIssuer) -> None:
    weak = rsa_key(1024)
    issuer.keys = [jwk_of("weak", weak)]
    with pytest.warns(jwt.warnings.InsecureKeyLengthWarning):
        token = issuer.token(weak, "weak")
    assert await _status(client, token) == 401


async def test_the_openapi_says_where_tokens_come_from(
    client: httpx.AsyncClient, issuer: AnIssuer
) -> None:
    found = (await client.get("/openapi.json")).json()
    schemes = found["components"]["securitySchemes"]
    place = f"{issuer.url}/.well-known/openid-configuration"
    assert schemes["oidc"] == {"type": "openIdConnect", "openIdConnectUrl": place}
    for item in found["paths"].values():
        for operation in item.values():
            assert operation["security"] == [{"key": []}, {"oidc": []}]
            assert {"401", "403", "429", "431"} <= set(operation["responses"])
            assert "Needs `read`" in operation["description"]
