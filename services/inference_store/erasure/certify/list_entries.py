"""The entries of a certificate's list: a letter, and a keyed hash of 32 bytes of what was erased.

The list is these entries one after the other, and nothing else.
"""

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from inference_store.erasure.log.keys import SigningKey
from inference_store.inference.events import StorageKey

# What went of an inference, by the scope of its erasure; and an object.
LETTERS: Final = {"inference": b"i", "input": b"d", "response": b"r"}
OBJECT: Final = b"o"
ENTRY_BYTES: Final = 33


def hash_inference(key: SigningKey, scope: str, uid: UUID) -> bytes:
    """Return the entry of an inference, or of its input or its response alone."""
    return LETTERS[scope] + key.keyed_hash("inference", uid.bytes)


def hash_object(key: SigningKey, storage_key: StorageKey) -> bytes:
    """Return the entry of an object, by its bucket and its key."""
    return OBJECT + key.keyed_hash("object", str(storage_key).encode("utf-8", "surrogatepass"))


def split_entries(chunk: bytes) -> Iterator[bytes]:
    """Yield the entries of a chunk. Raises ValueError if the last one is incomplete."""
    if len(chunk) % ENTRY_BYTES:
        raise ValueError(f"{len(chunk)} bytes are no whole number of entries")
    return (chunk[at : at + ENTRY_BYTES] for at in range(0, len(chunk), ENTRY_BYTES))
