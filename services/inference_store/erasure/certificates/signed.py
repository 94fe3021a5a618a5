"""Signed documents: JSON in one canonical form, so that a hash is over what everybody reads."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from .keys import PublicKey, SigningKey

_MEMBERS = {"document", "kind", "signature", "signed_by"}


class NotSigned(ValueError):
    """The bytes are no signed document in its canonical form."""


@dataclass(frozen=True)
class Signed:
    """A document with its signature. `text`: all of it as JSON, which is what is stored."""

    kind: str
    document: Mapping[str, Any]
    signed_by: str
    signature: bytes

    @cached_property
    def text(self) -> str:
        return canonical(
            {
                "document": self.document,
                "kind": self.kind,
                "signature": b64encode(self.signature).decode(),
                "signed_by": self.signed_by,
            }
        )

    @property
    def hash(self) -> bytes:
        """SHA-256 over the text: what the next one of a chain names."""
        return sha256(self.text.encode()).digest()

    def is_by(self, key: PublicKey) -> bool:
        """Whether this key has signed it."""
        said = canonical(self.document).encode()
        return key.id == self.signed_by and key.has_signed(self.kind, said, self.signature)


def signed(key: SigningKey, kind: str, document: Mapping[str, Any]) -> Signed:
    """A document with its signature."""
    signature = key.signature(kind, canonical(document).encode())
    return Signed(kind, document, key.id, signature)


def read_signed(text: bytes | str) -> Signed:
    """What `Signed.text` wrote; the signature is not looked at. Raises NotSigned."""
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or set(found) != _MEMBERS:
            raise NotSigned(f"it is no JSON object of {', '.join(sorted(_MEMBERS))}")
        signature = b64decode(found["signature"], validate=True)
        one = Signed(str(found["kind"]), found["document"], str(found["signed_by"]), signature)
        same = one.text.encode() == (text.encode() if isinstance(text, str) else text)
    except NotSigned:
        raise
    except (ValueError, TypeError, RecursionError) as exc:
        raise NotSigned(f"it cannot be read: {exc}") from exc
    if not same or not isinstance(one.document, dict):
        raise NotSigned("it is not in the canonical form: something in it was changed")
    return one


def canonical(value: Any) -> str:
    """JSON with sorted names, no spaces, and ASCII alone. Raises ValueError for NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
