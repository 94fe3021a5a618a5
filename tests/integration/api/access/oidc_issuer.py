"""A small OpenID Connect issuer on a real port: discovery, keys, tokens, sign-in."""

import asyncio
import base64
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlencode

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tests.servers.ports import free_port

AUDIENCE = "inference-store"
CLIENT, CLIENT_SECRET = "store-console", "a secret: of 50% +"
Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def make_rsa_key(bits: int = 2048) -> Private:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def make_ec_key() -> Private:
    return ec.generate_private_key(ec.SECP256R1())


def make_jwk(kid: str | None, private: Private, **more: Any) -> dict[str, Any]:
    kinds: tuple[tuple[type, Any], ...] = (
        (rsa.RSAPrivateKey, jwt.algorithms.RSAAlgorithm),
        (ec.EllipticCurvePrivateKey, jwt.algorithms.ECAlgorithm),
        (ed25519.Ed25519PrivateKey, jwt.algorithms.OKPAlgorithm),
    )
    algorithm = next(algorithm for kind, algorithm in kinds if isinstance(private, kind))
    jwk: dict[str, Any] = json.loads(algorithm.to_jwk(private.public_key()))
    return {**jwk, **({} if kid is None else {"kid": kid}), **more}


class OidcIssuer:
    """An issuer that runs while its block does.

    `keys` are the keys that it publishes, and `fetches` counts the requests for them. While the
    event `answers` is not set, requests for the keys wait.

    Every sign-in succeeds at once, without a form, as `claims["sub"]`; `signer` signs the tokens.
    """

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.fetches = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.discovery: dict[str, Any] = {}
        self.signer: tuple[Any, str] | None = None
        self.claims: dict[str, Any] = {}
        self.id_claims: dict[str, Any] = {}
        self.access_token: str | None = None
        self.is_public = False
        self.codes: dict[str, Mapping[str, str]] = {}
        self.exchanges: list[dict[str, str]] = []
        self._runner: web.AppRunner | None = None
        self._port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> "OidcIssuer":
        await self.start()
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._serve_discovery)
        app.router.add_get("/keys", self._serve_keys)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/token", self._exchange)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_discovery(self, _: web.Request) -> web.Response:
        document = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        }
        return web.json_response(document | self.discovery)

    async def _serve_keys(self, _: web.Request) -> web.Response:
        self.fetches += 1
        await self.answers.wait()
        return web.json_response({"keys": self.keys})

    async def _authorize(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        assert query["response_type"] == "code"
        assert query["client_id"] == CLIENT
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(8)
        self.codes[code] = query
        parameters = urlencode({"code": code, "state": query["state"], "iss": self.url})
        raise web.HTTPFound(f"{query['redirect_uri']}?{parameters}")

    async def _exchange(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.exchanges.append(form)
        authorization = self.codes.pop(form["code"], None)
        if (
            authorization is None
            or not self._is_known_client(request, form)
            or not _matches_authorization(authorization, form)
        ):
            return web.json_response({"error": "invalid_grant"}, status=400)
        return web.json_response(self._issue_tokens(authorization))

    def _is_known_client(self, request: web.Request, form: Mapping[str, str]) -> bool:
        if self.is_public:
            return form["client_id"] == CLIENT and "Authorization" not in request.headers
        credentials = form.get("client_id", ""), form.get("client_secret", "")
        scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
        if scheme == "Basic":
            name, _, secret = base64.b64decode(encoded).decode().partition(":")
            credentials = unquote(name), unquote(secret)
        return credentials == (CLIENT, CLIENT_SECRET)

    def _issue_tokens(self, authorization: Mapping[str, str]) -> dict[str, str]:
        assert self.signer is not None
        private, kid = self.signer
        id_claims = {
            "aud": CLIENT,
            "nonce": authorization["nonce"],
            **self.claims,
            **self.id_claims,
        }
        access = self.access_token or self.make_token(private, kid, **self.claims)
        id_token = self.make_token(private, kid, **id_claims)
        return {"token_type": "Bearer", "id_token": id_token, "access_token": access}

    def make_token(
        self, private: Any, kid: str | None, *, algorithm: str = "RS256", **changes: Any
    ) -> str:
        """Return a signed token; the value `...` removes a claim."""
        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "ada",
            "iat": now,
            "exp": now + 300,
            "roles": ["analysts"],
            **changes,
        }
        payload = {name: value for name, value in claims.items() if value is not ...}
        headers = None if kid is None else {"kid": kid}
        return jwt.encode(payload, private, algorithm=algorithm, headers=headers)


def _matches_authorization(authorization: Mapping[str, str], form: Mapping[str, str]) -> bool:
    """Check whether the client that exchanges a code is the one that requested it (PKCE)."""
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    is_same_address = form["redirect_uri"] == authorization["redirect_uri"]
    return is_same_address and challenge == authorization["code_challenge"]
