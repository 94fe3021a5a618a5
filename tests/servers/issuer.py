"""A small OpenID Connect issuer: discovery, its keys, and tokens by client credentials."""

import base64
import json
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET = "inference-store", "s3cret & more"


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
        handler = type("Handler", (_Handler,), {"issuer": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def token(self, *, audience: str = CLIENT, **claims: Any) -> str:
        """Return a token of this issuer."""
        now = int(time.time())
        payload = {"iss": self.url, "sub": CLIENT, "aud": audience, "iat": now}
        payload["exp"] = now + self.seconds
        return jwt.encode(payload | claims, self._key, "RS256", headers={"kid": "tests"})

    def answer(self, path: str) -> dict[str, Any] | None:
        """Return the answer to a GET; None if there is nothing at the path."""
        if path == "/jwks":
            key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key()))
            return {"keys": [{**key, "kid": "tests", "use": "sig", "alg": "RS256"}]}
        if path == "/.well-known/openid-configuration":
            return {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/jwks",
                "token_endpoint": f"{self.url}/token",
                "authorization_endpoint": f"{self.url}/authorize",
                "id_token_signing_alg_values_supported": ["RS256"],
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
            }
        return None

    def grant_token(self, authorization: str, form: dict[str, list[str]]) -> dict[str, Any] | None:
        """Return the answer of the token endpoint; None for another client or grant type."""
        self.token_requests += 1
        self.scopes += form.get("scope", [])
        client = base64.b64encode(f"{CLIENT}:s3cret%20%26%20more".encode()).decode()
        if authorization != f"Basic {client}" or form["grant_type"] != ["client_credentials"]:
            return None
        return {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.seconds}


class _Handler(BaseHTTPRequestHandler):
    issuer: Issuer

    def do_GET(self) -> None:
        answer = self.issuer.answer(self.path)
        self._send(404 if answer is None else 200, answer or {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        grant = self.issuer.grant_token(self.headers.get("Authorization", ""), parse_qs(body))
        self._send(401 if grant is None else 200, grant or {"error": "invalid_client"})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Tests read no access log."""
