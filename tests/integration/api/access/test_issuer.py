"""Tokens of a real issuer: verification, rights, changing keys, an unavailable issuer."""

import asyncio
import base64
import json
import re
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
from tests.integration.api.conftest import MakeApp, make_client
from tests.polling import until

from .conftest import OPEN
from .oidc_issuer import AUDIENCE, OidcIssuer, make_ec_key, make_jwk, make_rsa_key

RSA, OTHER_RSA, EC = make_rsa_key(), make_rsa_key(), make_ec_key()
ED = ed25519.Ed25519PrivateKey.generate()
RETRY_SECONDS = 0.3
# Long enough for any machine: the tests of limits set their own.
PATIENT_SECONDS = 600.0
SKEW_SECONDS = 300
_ROLES = {
    "analysts": [{"role": "analyst", "project_id": f"{OPEN}-project"}],
    "ops": [{"role": "owner"}],
}


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
def app(make_app: MakeApp, issuer: OidcIssuer) -> FastAPI:
    app = make_app(
        auth="on",
        oidc_issuer=issuer.url,
        oidc_audience=AUDIENCE,
        oidc_roles=_ROLES,
        oidc_clock_skew_seconds=SKEW_SECONDS,
    )
    issuer_keys = Issuer(issuer.url, retry_seconds=RETRY_SECONDS, timeout_seconds=PATIENT_SECONDS)
    app.state.authenticator.tokens = Tokens(app.state.settings, issuer_keys)
    return app


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with make_client(app) as http_client:
        yield http_client


async def _request_status(client: httpx.AsyncClient, token: str, path: str = "/v1/models") -> int:
    answer = await client.get(path, headers={"Authorization": f"Bearer {token}"})
    return answer.status_code


@pytest.mark.parametrize(
    ("key", "kid", "algorithm"),
    [(RSA, "rsa", "RS256"), (RSA, "rsa", "PS512"), (EC, "ec", "ES256"), (ED, "ed", "EdDSA")],
)
async def test_accepts_every_type_of_key(
    client: httpx.AsyncClient, issuer: OidcIssuer, key: Any, kid: str, algorithm: str
) -> None:
    token = issuer.make_token(key, kid, algorithm=algorithm)
    assert await _request_status(client, token) == 200
    assert issuer.fetches == 1


async def test_accepts_token_without_key_id_if_one_key_fits(
    client: httpx.AsyncClient, issuer: OidcIssuer
) -> None:
    assert await _request_status(client, issuer.make_token(RSA, None)) == 200


@pytest.mark.usefixtures("two_models")
async def test_claims_become_rights(client: httpx.AsyncClient, issuer: OidcIssuer) -> None:
    headers = {"Authorization": f"Bearer {issuer.make_token(RSA, 'rsa')}"}
    models = (await client.get("/v1/models", headers=headers)).json()["items"]
    assert [item["model_id"] for item in models] == [OPEN]
    path = f"/v1/models/{OPEN}/inferences/one"
    assert (await client.get(f"{path}/data", headers=headers)).status_code == 200
    assert (await client.delete(path, headers=headers)).status_code == 403
    ops = {"Authorization": f"Bearer {issuer.make_token(RSA, 'rsa', roles='ops')}"}
    assert len((await client.get("/v1/models", headers=ops)).json()["items"]) == 2
    audit = (await client.get("/v1/audit", headers=ops)).json()["items"]
    assert [(item["actor"], item["action"]) for item in audit] == [("oidc:ada", "data_read")]
    for roles in ([], "stranger", ["stranger"], {"ops": True}, 5, ...):
        token = issuer.make_token(RSA, "rsa", roles=roles)
        assert await _request_status(client, token) == 403
        assert await _request_status(client, token, f"/v1/models/{OPEN}") == 404


async def test_keys_of_a_bearer_outlive_the_token_and_name_the_bearer(
    client: httpx.AsyncClient, issuer: OidcIssuer
) -> None:
    """They can be listed and revoked when the bearer's right ends."""
    ops = {"Authorization": f"Bearer {issuer.make_token(RSA, 'rsa', roles='ops')}"}
    body = {"name": "x", "grants": [{"role": "reader"}]}
    key = (await client.post("/v1/keys", json=body, headers=ops)).json()
    assert (key["created_by"], key["expires_at"]) == ("oidc:ada", None)
    weaker = {"Authorization": f"Bearer {issuer.make_token(RSA, 'rsa')}"}
    assert (await client.post("/v1/keys", json=body, headers=weaker)).status_code == 403


async def test_tokens_that_are_refused(client: httpx.AsyncClient, issuer: OidcIssuer) -> None:
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
    statuses = {name: await _request_status(client, token) for name, token in refused.items()}
    assert statuses == dict.fromkeys(refused, 401)
    for changes in ({"exp": now - 20}, {"nbf": now + 20}, {"aud": ["another", AUDIENCE]}):
        assert await _request_status(client, issuer.make_token(RSA, "rsa", **changes)) == 200, (
            changes
        )


def _encode_part(document: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=").decode()


def _sign_with(secret: bytes, claims: str) -> str:
    """Sign with HS256 and the issuer's public key as the secret, the oldest of these attacks."""
    document = json.loads(base64.urlsafe_b64decode(claims + "=="))
    algorithm = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256)
    signed = f"{_encode_part({'alg': 'HS256', 'kid': 'rsa'})}.{_encode_part(document)}"
    signature = base64.urlsafe_b64encode(algorithm.sign(signed.encode(), secret)).rstrip(b"=")
    return f"{signed}.{signature.decode()}"


async def test_fetches_keys_once_and_again_when_they_change(
    client: httpx.AsyncClient, issuer: OidcIssuer
) -> None:
    assert await _request_status(client, issuer.make_token(RSA, "rsa")) == 200
    new = make_rsa_key()
    issuer.keys = [make_jwk("new", new)]
    token = issuer.make_token(new, "new")

    async def works() -> bool:
        return await _request_status(client, token) == 200

    assert await until(works, bool)
    assert await _request_status(client, issuer.make_token(RSA, "rsa")) == 401


async def test_unknown_key_ids_do_not_each_cause_a_fetch(
    client: httpx.AsyncClient, issuer: OidcIssuer
) -> None:
    began = time.monotonic()
    for number in range(20):
        assert await _request_status(client, issuer.make_token(RSA, f"unknown-{number}")) == 401
    assert issuer.fetches <= 1 + (time.monotonic() - began) / RETRY_SECONDS


async def test_issuer_is_unavailable(client: httpx.AsyncClient, issuer: OidcIssuer) -> None:
    await issuer.stop()
    token = issuer.make_token(RSA, "rsa")
    headers = {"Authorization": f"Bearer {token}"}
    away = await client.get("/v1/models", headers=headers)
    assert (away.status_code, away.headers["retry-after"]) == (503, "5")
    # the reason is in the log
    assert away.json()["detail"] == f"The issuer {issuer.url} is unavailable."
    assert token not in away.text
    # A key of the store is refused as before, since it needs no issuer.
    assert await _request_status(client, "isk_wrong") == 401
    await issuer.start()

    async def works() -> bool:
        return await _request_status(client, token) == 200

    assert await until(works, bool)
    await issuer.stop()  # known keys are used while it is unavailable
    assert await works()
    await issuer.start()


async def test_hanging_issuer_does_not_delay_known_keys(
    app: FastAPI, client: httpx.AsyncClient, issuer: OidcIssuer
) -> None:
    # its keys are old at once, and a fetch outlasts the test
    issuer_keys = Issuer(
        issuer.url, retry_seconds=0, fresh_seconds=0, timeout_seconds=PATIENT_SECONDS
    )
    app.state.authenticator.tokens = Tokens(app.state.settings, issuer_keys)
    token = issuer.make_token(RSA, "rsa")
    assert await _request_status(client, token) == 200
    issuer.answers.clear()
    async with asyncio.timeout(180):
        statuses = await asyncio.gather(*(_request_status(client, token) for _ in range(20)))
        assert statuses == [200] * 20

        async def count_fetches() -> int:
            return issuer.fetches

        assert await until(count_fetches, lambda fetches: fetches > 1) == 2  # one for all of them
        new = make_rsa_key()
        issuer.keys = [make_jwk("new", new)]
        waiting = asyncio.create_task(_request_status(client, issuer.make_token(new, "new")))
        assert await _request_status(client, token) == 200
        assert not waiting.done()
        issuer.answers.set()  # its late answer is used: the old key is withdrawn
        assert await waiting == 200
        assert await _request_status(client, token) == 401
        assert issuer.fetches == 3


async def test_hanging_issuer_times_out(
    app: FastAPI, client: httpx.AsyncClient, issuer: OidcIssuer
) -> None:
    issuer_keys = Issuer(issuer.url, retry_seconds=0, timeout_seconds=0.5)
    app.state.authenticator.tokens = Tokens(app.state.settings, issuer_keys)
    issuer.answers.clear()
    assert await _request_status(client, issuer.make_token(RSA, "rsa")) == 503
    issuer.answers.set()

    async def works() -> bool:
        return await _request_status(client, issuer.make_token(RSA, "rsa")) == 200

    assert await until(works, bool)


@pytest.mark.parametrize(
    "discovery",
    [{"issuer": "https://evil.example"}, {"jwks_uri": None}, {"jwks_uri": "file:///etc/passwd"}],
)
async def test_rejects_untrusted_discovery_document(
    client: httpx.AsyncClient, issuer: OidcIssuer, discovery: dict[str, Any]
) -> None:
    issuer.discovery = discovery
    assert await _request_status(client, issuer.make_token(RSA, "rsa")) == 503
    assert issuer.fetches == 0


async def test_ignores_weak_keys(client: httpx.AsyncClient, issuer: OidcIssuer) -> None:
    weak = make_rsa_key(1024)
    issuer.keys = [make_jwk("weak", weak)]
    with pytest.warns(jwt.warnings.InsecureKeyLengthWarning):
        token = issuer.make_token(weak, "weak")
    assert await _request_status(client, token) == 401


async def test_openapi_names_the_issuer(client: httpx.AsyncClient, issuer: OidcIssuer) -> None:
    openapi = (await client.get("/openapi.json")).json()
    schemes = openapi["components"]["securitySchemes"]
    url = f"{issuer.url}/.well-known/openid-configuration"
    assert schemes["oidc"] == {"type": "openIdConnect", "openIdConnectUrl": url}
    for item in openapi["paths"].values():
        for operation in item.values():
            assert operation["security"] == [{"key": []}, {"oidc": []}]
            assert {"401", "403", "429", "431"} <= set(operation["responses"])
            assert re.search(r"Needs (`read`|no right)", operation["description"])
