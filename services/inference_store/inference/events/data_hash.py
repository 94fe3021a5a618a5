"""The hash of a datum, as it is stored: SHA-256 in small hexadecimal digits."""

import re
from typing import Final

# The proxy's, of an input that is redacted: only who has the key can compute it.
_HASH: Final = re.compile(r"(hmac-sha256:)?[0-9a-f]{64}")


def data_hash_of(text: str) -> str | None:
    """The hash that a text is, also in capitals; None: it is none."""
    small = text.lower()
    return small if _HASH.fullmatch(small) else None
