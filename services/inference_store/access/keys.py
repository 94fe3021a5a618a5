"""An API key. Of its text only a hash is kept."""

from dataclasses import dataclass
from datetime import datetime

from inference_store.access.rights import Grant

from . import secrets


@dataclass(frozen=True, slots=True)
class Key:
    """An API key, without its text."""

    id: str
    name: str
    grants: tuple[Grant, ...]
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    rotated_at: datetime | None
    old_works_until: datetime | None
    """Until when the text before the last rotation works."""
    revoked_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class Held:
    """A key with the hashes that a text is compared with."""

    key: Key
    hash: bytes
    old_hash: bytes | None

    def opens(self, text: str, now: datetime) -> bool:
        """Whether the text is this key's, and works now."""
        key = self.key
        right = secrets.is_same(text, self.hash)
        if self.old_hash is not None and key.old_works_until is not None:
            right |= secrets.is_same(text, self.old_hash) and now < key.old_works_until
        expired = key.expires_at is not None and now >= key.expires_at
        return right and not expired and key.revoked_at is None
