"""A small OpenID Connect issuer: discovery, its keys, and tokens by client credentials."""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.http_stub import Request, Response, serve_http

CLIENT, SECRET = "inference-store", "s3cret & more"
Form = Mapping[str, str]
Answer = tuple[int, dict[str, Any]]


@dataclass
class Issuer:
    """Listens on 127.0.0.1 while its block runs. `token_requests` counts requests for tokens."""

    seconds: int = 3600
    token_requests: int = 0
    scopes: list[str] = field(default_factory=list)
    _key: rsa.RSAPrivateKey = field(
        default_factory=lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048)
    )

    def __enter__(self) -> Self:
        self._serving = serve_http(self._respond)
        self.url = self._serving.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)

    def _respond(self, request: Request) -> Response:
        if request.method == "GET":
            described = self.describe(request.path)
            status, body = (404, {}) if described is None else (200, described)
        else:
            form = dict(parse_qsl(request.body.decode()))
            by = request.headers.get("Authorization", "")
            status, body = self.answer(request.path, form, by)
        return Response(status, json.dumps(body).encode(), "application/json")

    def token(self, *, audience: str = CLIENT, **claims: Any) -> str:
        now = int(time.time())
        payload = {"iss": self.url, "sub": CLIENT, "aud": audience, "iat": now}
        payload["exp"] = now + self.seconds
        return jwt.encode(payload | claims, self._key, "RS256", headers={"kid": "tests"})

    def describe(self, path: str) -> dict[str, Any] | None:
        """Return the answer to a GET; None if there is nothing at the path."""
        if path == "/keys":
            key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
            return {"keys": [{**key, "kid": "tests", "use": "sig", "alg": "RS256"}]}
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                "token_endpoint": f"{self.url}/token",
                **self.list_endpoints(),
            }
        return None

    def list_endpoints(self) -> dict[str, Any]:
        return {
            "authorization_endpoint": f"{self.url}/authorize",
            "id_token_signing_alg_values_supported": ["RS256"],
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
        }

    def answer(self, path: str, form: Form, authorization: str) -> Answer:
        """Return the answer to a POST: to /token, by this client's credentials."""
        self.token_requests += 1
        self.scopes += [form["scope"]] if "scope" in form else []
        client = base64.b64encode(f"{CLIENT}:s3cret%20%26%20more".encode()).decode()
        asked = (path, authorization, form["grant_type"])
        if asked != ("/token", f"Basic {client}", "client_credentials"):
            return 401, {"error": "invalid_client"}
        token = {"access_token": self.token(), "token_type": "Bearer"}
        return 200, {**token, "expires_in": self.seconds}
