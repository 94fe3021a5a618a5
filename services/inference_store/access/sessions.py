"""The session of a browser that is signed in. Of its id, 256 random bits, only a hash is kept."""

import secrets
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256


@dataclass(frozen=True, slots=True)
class Identity:
    """A signed-in caller with a credential, which each request compares with those accepted now."""

    caller: str
    """As the audit names them."""
    secret_hash: bytes | None = None
    """SHA-256 of their key, or of the token of the settings."""
    issuer: str | None = None
    """Of their token, if an issuer signed it."""
    roles: tuple[str, ...] = ()
    """The values of that token's roles claim."""
    expires_at: datetime | None = None
    """When their key or token expires; None: never."""


@dataclass(frozen=True, slots=True)
class Session:
    """A session; it counts at the host where it was started alone."""

    id_hash: bytes
    identity: Identity
    host: str
    started_at: datetime
    used_at: datetime
    idle_until: datetime
    """When it ends unless it is used before; later, at most until `expires_at`, if it is."""
    expires_at: datetime
    """When it ends in any case."""

    @property
    def label(self) -> str:
        """The name of the session in the audit: it identifies the session, but cannot sign in."""
        return self.id_hash[:6].hex()

    def is_live(self, now: datetime) -> bool:
        """Return whether it has not ended by itself."""
        return now < min(self.idle_until, self.expires_at)


def new_id() -> str:
    """Return an id that nobody can guess."""
    return secrets.token_urlsafe(32)


def hash_id(id: str) -> bytes:
    """Return what is kept of an id."""
    return sha256(id.encode("utf-8", "replace")).digest()
