"""API keys, and sessions of the console. Only hashes of their texts are stored."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from inference_store.inference.field_docs import Stored

from .rights import Grant


class ApiKey(Stored):
    """An API key, without its text."""

    id: str
    name: str
    grants: tuple[Grant, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    rotated_at: datetime | None
    old_works_until: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    """Exact to a minute."""
    unconfirmed: bool
    """A restored backup has it, and the ledger does not: it works once it is confirmed."""


@dataclass(frozen=True, slots=True)
class HashedApiKey:
    """A key with the hashes to compare a text with."""

    key: ApiKey
    hash: bytes
    old_hash: bytes | None

    def opens(self, hash: bytes, now: datetime) -> bool:
        """Return whether the hash is that of this key's text, and the text works now."""
        key = self.key
        is_right = hmac.compare_digest(hash, self.hash)
        if self.old_hash is not None and key.old_works_until is not None:
            is_right |= hmac.compare_digest(hash, self.old_hash) and now < key.old_works_until
        expired = key.expires_at is not None and now >= key.expires_at
        return is_right and not (expired or key.unconfirmed or key.revoked_at is not None)


# The text of an API key, `isk_<id>_<secret>`, and its stored hash.
#
# The secret has 256 random bits, so that SHA-256 is enough: a slow hash protects passwords that can
# be guessed. The id finds the row; the comparison takes the same time wherever the texts differ.

PREFIX = "isk_"
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
_SPELLED = re.compile(rf"{PREFIX}([{_LETTERS}]{{12}})_[A-Za-z0-9_-]{{43}}")


@dataclass(frozen=True, slots=True)
class Secret:
    """A key's text. It is shown once, and never stored or logged."""

    text: str

    def __repr__(self) -> str:
        return "Secret(…)"

    @property
    def hash(self) -> bytes:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).digest()


def new_id() -> str:
    """Return an id that no other key has: 60 random bits, in characters that are easy to tell
    apart."""
    return "".join(secrets.choice(_LETTERS) for _ in range(12))


def new_secret(id: str) -> Secret:
    """Return a new text for a key."""
    return Secret(f"{PREFIX}{id}_{secrets.token_urlsafe(32)}")


def id_of(text: str) -> str | None:
    """Return the id in a key's text; None if it is not a key."""
    match = _SPELLED.fullmatch(text)
    return None if match is None else match[1]


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


def hash_session_id(id: str) -> bytes:
    """Return what is kept of an id."""
    return sha256(id.encode("utf-8", "replace")).digest()
