"""Signed documents: JSON in one canonical form, so that a hash covers what everybody reads."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from .canonical import canonical
from .keys import PublicKey, SigningKey

_MEMBERS = {"document", "kind", "signature", "signed_by"}


class NotSigned(ValueError):
    """The bytes are not a signed document in canonical form."""


@dataclass(frozen=True)
class SignedDocument:
    """A document with its signature. `text`: all of it as JSON, as it is stored."""

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
    def number(self) -> Any:
        """Its number in a chain; None, or something else, in a document that is not of one."""
        return self.document.get("number")

    @property
    def previous(self) -> Any:
        """The hash of the document before it, in hexadecimal."""
        return self.document.get("previous")

    @property
    def data(self) -> bytes:
        """The text as it is stored in the bucket."""
        return self.text.encode()

    @property
    def hash(self) -> bytes:
        """The SHA-256 over the text, which the next document of a chain names."""
        return sha256(self.data).digest()

    def is_by(self, key: PublicKey) -> bool:
        """Return whether this key has signed it."""
        text = canonical(self.document).encode()
        return key.id == self.signed_by and key.has_signed(self.kind, text, self.signature)


def sign_document(key: SigningKey, kind: str, document: Mapping[str, Any]) -> SignedDocument:
    """Sign a document."""
    signature = key.sign(kind, canonical(document).encode())
    return SignedDocument(kind, document, key.id, signature)


def read_document(text: bytes | str) -> SignedDocument:
    """Read a `SignedDocument.text`, without verifying the signature. Raises NotSigned."""
    try:
        members = json.loads(text)
        if not isinstance(members, dict) or set(members) != _MEMBERS:
            raise NotSigned(f"it is no JSON object of {', '.join(sorted(_MEMBERS))}")
        signature = b64decode(members["signature"], validate=True)
        document = SignedDocument(
            str(members["kind"]), members["document"], str(members["signed_by"]), signature
        )
        same = document.text.encode() == (text.encode() if isinstance(text, str) else text)
    except NotSigned:
        raise
    except (ValueError, TypeError, RecursionError) as exc:
        raise NotSigned(f"it cannot be read: {exc}") from exc
    if not same or not isinstance(document.document, dict):
        raise NotSigned("it is not in the canonical form: something in it was changed")
    return document
