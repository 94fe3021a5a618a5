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
    """Listens on 127.0.0.1 while its block runs. `asked`: how many tokens were asked for."""

    seconds: int = 3600
    asked: int = 0
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
        """A token of this issuer's."""
        now = int(time.time())
        said = {"iss": self.url, "sub": CLIENT, "aud": audience, "iat": now}
        said["exp"] = now + self.seconds
        return jwt.encode(said | claims, self._key, "RS256", headers={"kid": "tests"})

    def answer(self, path: str) -> dict[str, Any] | None:
        """What a GET answers."""
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

    def granted(self, authorization: str, form: dict[str, list[str]]) -> dict[str, Any] | None:
        """What the token endpoint answers; None: another client, or another grant."""
        self.asked += 1
        self.scopes += form.get("scope", [])
        client = base64.b64encode(f"{CLIENT}:s3cret%20%26%20more".encode()).decode()
        if authorization != f"Basic {client}" or form["grant_type"] != ["client_credentials"]:
            return None
        return {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.seconds}


class _Handler(BaseHTTPRequestHandler):
    issuer: Issuer

    def do_GET(self) -> None:
        found = self.issuer.answer(self.path)
        self._say(404 if found is None else 200, found or {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        found = self.issuer.granted(self.headers.get("Authorization", ""), parse_qs(body))
        self._say(401 if found is None else 200, found or {"error": "invalid_client"})

    def _say(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Tests read no access log."""
