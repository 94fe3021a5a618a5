"""The text of an API key, `isk_<id>_<secret>`, and its stored hash.

The secret has 256 random bits, so that SHA-256 is enough: a slow hash protects passwords that can
be guessed. The id finds the row; the comparison takes the same time wherever the texts differ.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass

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
