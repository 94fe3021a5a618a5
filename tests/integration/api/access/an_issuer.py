"""A small OpenID Connect issuer on a real port: discovery, keys, tokens."""

import asyncio
import json
import time
from types import TracebackType
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

AUDIENCE = "inference-store"
Private = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def rsa_key(bits: int = 2048) -> Private:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def ec_key() -> Private:
    return ec.generate_private_key(ec.SECP256R1())


def jwk_of(kid: str | None, private: Private, **more: Any) -> dict[str, Any]:
    """The public half as a JSON Web Key."""
    kinds: tuple[tuple[type, Any], ...] = (
        (rsa.RSAPrivateKey, jwt.algorithms.RSAAlgorithm),
        (ec.EllipticCurvePrivateKey, jwt.algorithms.ECAlgorithm),
        (ed25519.Ed25519PrivateKey, jwt.algorithms.OKPAlgorithm),
    )
    algorithm = next(algorithm for kind, algorithm in kinds if isinstance(private, kind))
    found: dict[str, Any] = json.loads(algorithm.to_jwk(private.public_key()))
    return {**found, **({} if kid is None else {"kid": kid}), **more}


class AnIssuer:
    """It answers while the block runs; `keys` is what it publishes, `fetches` how often.

    While `answers` is not set it takes requests and says nothing.
    """

    def __init__(self) -> None:
        self.keys: list[dict[str, Any]] = []
        self.fetches = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.discovery: dict[str, Any] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> "AnIssuer":
        await self.start()
        return self

    async def __aexit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._discovery)
        app.router.add_get("/keys", self._keys)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _discovery(self, _: web.Request) -> web.Response:
        told = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        return web.json_response(told | self.discovery)

    async def _keys(self, _: web.Request) -> web.Response:
        self.fetches += 1
        await self.answers.wait()
        return web.json_response({"keys": self.keys})

    def token(
        self, private: Any, kid: str | None, *, algorithm: str = "RS256", **changes: Any
    ) -> str:
        """A signed token; `...` takes a claim away."""
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
        kept = {name: value for name, value in claims.items() if value is not ...}
        headers = None if kid is None else {"kid": kid}
        return jwt.encode(kept, private, algorithm=algorithm, headers=headers)
