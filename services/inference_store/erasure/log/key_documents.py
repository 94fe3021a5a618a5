"""The documents that introduce the keys of a signed chain.

The first key signs its own document, each later one is introduced by the key before it. If the
private key of the newest one is lost, a new key restarts the chain: its document is signed by
itself, and says so. Nobody can tell from that alone whether the chain is still in the same hands.
"""

from base64 import b64decode
from datetime import UTC, datetime
from typing import Any, Final

from .canonical import format_instant
from .hash_chain import Link
from .keys import PublicKey
from .signed_document import SignedDocument

KIND: Final = "certificate_key"
RESTART: Final = "begun_anew"
"""The member of a document by which a key restarts the chain."""


def make_key_document(key: PublicKey, *, after: Link) -> dict[str, Any]:
    """Return the document of a key, to be signed by the key before it (the first: by itself)."""
    issued_at = format_instant(datetime.now(UTC))
    return {**after.next_members, "issued_at": issued_at, "key": key.id, "public_key": key.text}


def read_public_key(document: SignedDocument) -> PublicKey:
    """Return the key that a document introduces. Raises KeyError and ValueError."""
    return PublicKey(b64decode(document.document["public_key"]))


def find_restart_key(document: SignedDocument) -> PublicKey | None:
    """Return the key with which a document restarts the chain; None if it does not."""
    if document.kind != KIND or not isinstance(document.document.get(RESTART), dict):
        return None
    key = read_public_key(document)
    return key if document.is_by(key) else None
