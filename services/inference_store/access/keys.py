"""An API key. Only a hash of its text is stored."""

import hmac
from dataclasses import dataclass
from datetime import datetime

from inference_store.access.rights import Grant


@dataclass(frozen=True, slots=True)
class ApiKey:
    """An API key, without its text."""

    id: str
    name: str
    grants: tuple[Grant, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    rotated_at: datetime | None
    # when the text before the last rotation stops working
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
