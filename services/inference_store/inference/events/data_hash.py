"""The hash of a datum, as it is stored: SHA-256 in lower-case hexadecimal digits."""

import re
from typing import Final

# The prefix is the proxy's, for a redacted input: only the owner of the key can compute the hash.
_HASH: Final = re.compile(r"(hmac-sha256:)?[0-9a-f]{64}")


def data_hash_of(text: str) -> str | None:
    """Return the hash in a text, which may be in capitals; None if it is not a hash."""
    small = text.lower()
    return small if _HASH.fullmatch(small) else None
