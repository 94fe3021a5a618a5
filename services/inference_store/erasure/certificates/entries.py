"""The entries of a certificate's list: what was erased, by keyed hashes of 32 bytes each, behind a
letter that says of what. The list is these entries one after the other, and nothing else.
"""

from collections.abc import Iterator
from typing import Final
from uuid import UUID

from inference_store.inference.events import StorageKey

from .keys import SigningKey

# What went of an inference, by the scope of its erasure; and an object.
LETTERS: Final = {"inference": b"i", "input": b"d", "response": b"r"}
OBJECT: Final = b"o"
ENTRY_BYTES: Final = 33


def of_inference(key: SigningKey, scope: str, uid: UUID) -> bytes:
    """The entry of an inference, or of its input or its response alone."""
    return LETTERS[scope] + key.keyed_hash("inference", uid.bytes)


def of_object(key: SigningKey, place: StorageKey) -> bytes:
    """The entry of an object, by its bucket and its key."""
    return OBJECT + key.keyed_hash("object", str(place).encode("utf-8", "surrogatepass"))


def entries_of(chunk: bytes) -> Iterator[bytes]:
    """The entries of a chunk. Raises ValueError where it is no whole number of them."""
    if len(chunk) % ENTRY_BYTES:
        raise ValueError(f"{len(chunk)} bytes are no whole number of entries")
    return (chunk[at : at + ENTRY_BYTES] for at in range(0, len(chunk), ENTRY_BYTES))
