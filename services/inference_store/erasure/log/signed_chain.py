"""Signed documents, those that introduce keys, and the chain of both.

The first key signs its own document, each later one is introduced by the key before it. If the
private key of the newest one is lost, a new key restarts the chain: its document is signed by
itself, and says so. Nobody can tell from that alone whether the chain is still in the same
hands: a policy says which keys may introduce themselves.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from .hash_chain import START, Link, canonical, format_instant
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


class BrokenChain(Exception):
    """The chain cannot be continued: a document or a key does not fit."""


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """Says whether a key may be the first of a chain, or restart it by a document."""

    is_first: Callable[[PublicKey], bool] = lambda _: True
    is_restart: Callable[[PublicKey, SignedDocument], bool] = lambda *_: True


class SignedChain:
    """The end of a chain and its keys, the oldest first. `kinds`: what may be in it beside keys."""

    def __init__(
        self,
        end: Link = START,
        keys: Sequence[PublicKey] = (),
        *,
        kinds: Collection[str],
        policy: KeyPolicy | None = None,
    ) -> None:
        self.end = end
        self.keys = tuple(keys)
        # documents that restarted the chain, the oldest first
        self.restarts: list[SignedDocument] = []
        self._kinds = {KIND, *kinds}
        self._policy = policy or KeyPolicy()

    def check(self, data: bytes) -> tuple[SignedDocument | None, list[str]]:
        """Read what should be the next document, and return it with all that is wrong with it.

        The document is None if it cannot be read.
        """
        try:
            document = read_document(data)
            signer = self._find_signer(document)
        except (NotSigned, KeyError, ValueError, TypeError) as error:
            return None, [str(error)]
        faults = list(self.end.find_faults(document))
        if document.kind not in self._kinds:
            faults.append(f"it is of no kind that there is: {document.kind}")
        fault = self._find_signature_fault(document, signer)
        return document, faults if fault is None else [*faults, fault]

    def advance(self, document: SignedDocument) -> None:
        """Go on to a document that was checked."""
        if find_restart_key(document) is not None:
            self.restarts.append(document)
        if document.kind == KIND:
            self.keys += (read_public_key(document),)
        self.end = Link(self.end.number + 1, document.hash)

    def follow(self, data: bytes) -> SignedDocument:
        """Check the next document and go on to it. Raises BrokenChain."""
        document, faults = self.check(data)
        if document is None or faults:
            number = self.end.number + 1
            raise BrokenChain(f"certificate {number} in the bucket: {'; '.join(faults)}")
        self.advance(document)
        return document

    def _find_signer(self, document: SignedDocument) -> PublicKey | None:
        if self.keys:
            return find_restart_key(document) or self.keys[-1]
        return read_public_key(document) if document.kind == KIND else None

    def _find_signature_fault(
        self, document: SignedDocument, signer: PublicKey | None
    ) -> str | None:
        if signer is None:
            return "the first of a chain introduces its key, and this does not"
        if not document.is_by(signer):
            return f"the signature is not of key {signer.id}, which signs at this place"
        if not self.keys and not self._policy.is_first(signer):
            return f"the chain begins with key {signer.id}, which is none of the trusted"
        if self.keys and signer != self.keys[-1] and not self._policy.is_restart(signer, document):
            return (
                f"the chain restarts with key {signer.id}, which no key before it has signed"
                " and which is none of the trusted"
            )
        return None
