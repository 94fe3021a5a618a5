"""A small OpenID Connect issuer with the device flow, on a real port of this machine."""

import secrets
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from tests.servers.issuer import Answer, Form, Issuer

AUDIENCE, CLIENT = "inference-store", "istore"
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"


@dataclass
class DeviceIssuer(Issuer):
    """Listens on loopback while its block runs.

    `refusals`: what each question for the tokens of a code is answered, before they are given.
    A refresh token is good for one use. `seconds`: how long an access token is valid.
    """

    refusals: list[str] = field(default_factory=list)
    discovery: dict[str, Any] = field(default_factory=dict)
    gives_refresh_tokens: bool = True
    forms: list[tuple[str, Form]] = field(default_factory=list)
    refresh_tokens: set[str] = field(default_factory=set)
    revoked: list[str] = field(default_factory=list)
    subject: str = "ada"
    lock: Lock = field(default_factory=Lock)

    def list_endpoints(self) -> dict[str, Any]:
        return {
            "device_authorization_endpoint": f"{self.url}/device",
            "revocation_endpoint": f"{self.url}/revoke",
            **self.discovery,
        }

    def answer(self, path: str, form: Form, authorization: str) -> Answer:  # noqa: ARG002
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
        claims = {"sub": self.subject, "roles": ["analysts"], "jti": secrets.token_hex(8)}
        access = self.token(audience=AUDIENCE, **claims)
        tokens = {"access_token": access, "token_type": "Bearer", "expires_in": self.seconds}
        if self.gives_refresh_tokens:
            tokens["refresh_token"] = secrets.token_hex(16)
            self.refresh_tokens.add(str(tokens["refresh_token"]))
        return tokens
