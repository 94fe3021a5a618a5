"""A small OpenID Connect issuer with the device flow, on a real port of this machine."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, Self
from urllib.parse import parse_qsl

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

AUDIENCE, CLIENT = "inference-store", "istore"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
Form = Mapping[str, str]
Answer = tuple[int, dict[str, Any]]


@dataclass
class DeviceIssuer:
    """Listens on loopback while its block runs.

    `refusals`: what each question for the tokens of a code is answered, before they are given.
    A refresh token is good for one use. `seconds`: how long an access token is valid.
    """

    refusals: list[str] = field(default_factory=list)
    seconds: int = 3600
    discovery: dict[str, Any] = field(default_factory=dict)
    gives_refresh_tokens: bool = True
    forms: list[tuple[str, Form]] = field(default_factory=list)
    refresh_tokens: set[str] = field(default_factory=set)
    revoked: list[str] = field(default_factory=list)
    subject: str = "ada"
    lock: Lock = field(default_factory=Lock)
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
                "device_authorization_endpoint": f"{self.url}/device",
                "revocation_endpoint": f"{self.url}/revoke",
                **self.discovery,
            }
        return None

    def answer(self, path: str, form: Form) -> Answer:
        """Return the answer to a POST."""
        with self.lock:
            self.forms.append((path, form))
            if form.get("client_id") != CLIENT:
                return 401, {"error": "invalid_client"}
            match path, form.get("grant_type"):
                case "/device", _:
                    return 200, self._make_code()
                case "/revoke", _:
                    self.revoked.append(form["token"])
                    return 200, {}
                case "/token", grant if grant == DEVICE:
                    return self._redeem()
                case "/token", "refresh_token":
                    return self._refresh(form["refresh_token"])
        return 400, {"error": "unsupported_grant_type"}

    def _make_code(self) -> dict[str, Any]:
        page = f"{self.url}/activate"
        code = {"device_code": "the-device-code", "user_code": "WDJB-MJHT", "interval": 1}
        pages = {
            "verification_uri": page,
            "verification_uri_complete": f"{page}?user_code=WDJB-MJHT",
        }
        return {**code, **pages, "expires_in": 600}

    def _redeem(self) -> Answer:
        if self.refusals:
            return 400, {"error": self.refusals.pop(0)}
        return 200, self.make_tokens()

    def _refresh(self, token: str) -> Answer:
        if token not in self.refresh_tokens:
            return 400, {"error": "invalid_grant", "error_description": "the token is spent"}
        self.refresh_tokens.remove(token)
        return 200, self.make_tokens()

    def make_tokens(self) -> dict[str, Any]:
        """Return new tokens."""
        now = int(time.time())
        claims = {"iss": self.url, "sub": self.subject, "aud": AUDIENCE, "iat": now}
        claims |= {"exp": now + self.seconds, "roles": ["analysts"], "jti": secrets.token_hex(8)}
        access = jwt.encode(claims, self._key, "RS256", headers={"kid": "tests"})
        tokens = {"access_token": access, "token_type": "Bearer", "expires_in": self.seconds}
        if self.gives_refresh_tokens:
            tokens["refresh_token"] = secrets.token_hex(16)
            self.refresh_tokens.add(str(tokens["refresh_token"]))
        return tokens


class _Handler(BaseHTTPRequestHandler):
    issuer: DeviceIssuer

    def do_GET(self) -> None:
        answer = self.issuer.describe(self.path)
        self._send(404 if answer is None else 200, answer or {})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self._send(*self.issuer.answer(self.path, dict(parse_qsl(body))))

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Tests read no access log."""
