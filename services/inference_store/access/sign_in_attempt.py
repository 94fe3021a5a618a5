"""One attempt of a browser to sign in at an issuer.

All that is remembered between its two requests is a random value in a cookie. What the issuer is
sent is derived from it, so that nothing is stored for browsers that never come back.
"""

import hmac
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

CALLBACK: Final = "/v1/session/oidc/callback"
"""Where the issuer sends browsers back to, below the public URL."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a browser to sign in. `secret` is known to that browser alone."""

    secret: str

    @classmethod
    def begin(cls) -> "Attempt":
        """Begin an attempt, with a secret of 256 random bits."""
        return cls(secrets.token_urlsafe(32))

    @property
    def state(self) -> str:
        """The value that the issuer sends back, so that nobody signs somebody else's browser in."""
        return self._derive("state")

    @property
    def nonce(self) -> str:
        """The value that the issuer puts into the token, so that no other token will do."""
        return self._derive("nonce")

    @property
    def verifier(self) -> str:
        """The secret that redeems a code: a stolen code alone is of no use (PKCE)."""
        return self._derive("verifier")

    @property
    def challenge(self) -> str:
        """The hash of the verifier, which the issuer gets first."""
        return _encode(sha256(self.verifier.encode()).digest())

    def _derive(self, name: str) -> str:
        return _encode(hmac.digest(self.secret.encode(), name.encode(), "sha256"))


def _encode(digest: bytes) -> str:
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
