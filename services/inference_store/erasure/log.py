"""Signed documents, those that introduce keys, and the chain of both.

The first key signs its own document, each later one is introduced by the key before it. If the
private key of the newest one is lost, a new key restarts the chain: its document is signed by
itself, and says so. That alone does not show who controls the chain now, so the verifier names
the keys that may introduce themselves.

Each signed document is an entry of the ledger. The head in the bucket is signed too, and names the
newest of both, by which a missing end is noticed: it is under one key whose versions nobody can
delete while they are locked.
"""

import hmac
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from inference_store.erasure.hash_chain import START, Link, canonical
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import CERTIFICATES
from inference_store.objects import LockedObject
from inference_store.platform.json_encoding import format_instant
from inference_store.platform.settings import BlobSettings, CertificateSettings, WrongSetting

# The keys that sign documents, and that hash what these may not name.
#
# A file of keys is PEM: the first private key signs, those after it have signed before. An old key
# is kept there for two things: to sign the one that follows it, and because what its certificates
# hash can be hashed again with it alone.

_BLOCK: Final = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?-----END [A-Z0-9 ]+-----", re.DOTALL)
_HASHES: Final = b"inference-store certificates: keyed hashes"
_ID_CHARACTERS: Final = 32
MAKE: Final = "make one with `inference-store certificates keys new`"


class NoKey(ValueError):
    """The text has no Ed25519 private key in PEM; the message says what it has."""


def is_key_id(text: str) -> bool:
    """Check whether a text has the form of a key's id."""
    return len(text) == _ID_CHARACTERS and not set(text) - set("0123456789abcdef")


@dataclass(frozen=True)
class PublicKey:
    """An Ed25519 public key. `raw`: 32 bytes."""

    raw: bytes

    @cached_property
    def id(self) -> str:
        """The name of the key: the beginning of the SHA-256 of its bytes, in hexadecimal."""
        return sha256(self.raw).hexdigest()[:_ID_CHARACTERS]

    @property
    def text(self) -> str:
        """The 32 bytes in base64."""
        return b64encode(self.raw).decode()

    @property
    def pem(self) -> str:
        """The key in the form that `openssl pkey -pubin` reads."""
        key = Ed25519PublicKey.from_public_bytes(self.raw)
        return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def has_signed(self, kind: str, document: bytes, signature: bytes) -> bool:
        """Return whether this key signed this document as this kind."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(
                signature, _join_kind(kind, document)
            )
        except (InvalidSignature, ValueError):
            return False
        return True


class SigningKey:
    """A private key, and what is derived from it to hash with."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        public = key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.public = PublicKey(public)
        secret = key.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
        self._hashing = HKDF(SHA256(), 32, salt=None, info=_HASHES).derive(secret)

    @property
    def id(self) -> str:
        """The name of its public key."""
        return self.public.id

    def sign(self, kind: str, document: bytes) -> bytes:
        """Return 64 bytes over a document and its kind: no signature serves for another kind."""
        return self._key.sign(_join_kind(kind, document))

    def keyed_hash(self, kind: str, value: bytes) -> bytes:
        """Return 32 bytes that tell nothing of the value without the key."""
        return hmac.digest(self._hashing, kind.encode() + b"\0" + value, "sha256")

    @property
    def pem(self) -> str:
        """The private key, to be kept secret."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def new_key() -> SigningKey:
    """Return a new key."""
    return SigningKey(Ed25519PrivateKey.generate())


def read_keys(text: str) -> Sequence[SigningKey]:
    """Return the private keys of a PEM text, in order. Raises NoKey, which does not quote it."""
    keys = [_read_block(block) for block in _BLOCK.findall(text)]
    if not keys:
        raise NoKey(f"it has no private key in PEM: {MAKE}")
    if len({key.id for key in keys}) < len(keys):
        raise NoKey("it has the same key twice")
    return keys


def signing_keys(settings: CertificateSettings) -> Sequence[SigningKey]:
    """Return the keys of the settings, if any. Raises WrongSetting, which never quotes them."""
    if settings.certificate_key is None:
        return ()
    try:
        return read_keys(settings.certificate_key.get_secret_value())
    except NoKey as exc:
        raise WrongSetting(f"INFERENCE_STORE_CERTIFICATE_KEY: {exc}.") from exc


def known_key_ids(settings: CertificateSettings) -> Sequence[str]:
    """Return the ids of the keys of the settings, which may be public halves alone.

    Raises WrongSetting, which never quotes them.
    """
    text = settings.certificate_key.get_secret_value() if settings.certificate_key else ""
    try:
        public = load_pem_public_key(text.encode()).public_bytes(Encoding.Raw, PublicFormat.Raw)
    except ValueError:
        return [key.id for key in signing_keys(settings)]
    return [PublicKey(public).id]


def _read_block(block: str) -> SigningKey:
    try:
        key = load_pem_private_key(block.encode(), password=None)
    except (ValueError, TypeError) as exc:
        raise NoKey(f"a block is no private key that can be read: {MAKE}") from exc
    if not isinstance(key, Ed25519PrivateKey):
        raise NoKey(f"a key is not of Ed25519: {MAKE}")
    return SigningKey(key)


def _join_kind(kind: str, document: bytes) -> bytes:
    return b"inference-store " + kind.encode() + b"\n" + document


def hash_values(key: SigningKey, criteria: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return a request of an erasure with keyed hashes for values, and a count for ids."""
    if criteria is None:
        return None
    hashed: dict[str, Any] = {}
    if "filter" in criteria:
        hashed["filter"] = {"keyed_hash": hash_value(key, "filter", criteria["filter"])}
    if "subject" in criteria:
        subject = criteria["subject"]
        hashed["subject"] = {"keyed_hash": hash_value(key, "subject", subject)}
    if "report" in criteria:
        hashed["report"] = criteria["report"]
    if "inference_ids" in criteria:
        hashed["inference_ids"] = len(criteria["inference_ids"])
    return hashed


def hash_value(key: SigningKey, kind: str, value: Any) -> str:
    """Return the keyed hash that stands for a value in a document."""
    return key.keyed_hash(kind, canonical(value).encode()).hex()


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

    @property
    def members(self) -> dict[str, Any]:
        """The members of the JSON."""
        return {
            "document": self.document,
            "kind": self.kind,
            "signature": b64encode(self.signature).decode(),
            "signed_by": self.signed_by,
        }

    @cached_property
    def text(self) -> str:
        return canonical(self.members)

    @property
    def number(self) -> Any:
        """Its number in the chain; None, or something else, if it is not as it was signed."""
        return self.document.get("number")

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
        document = read_members(json.loads(text))
        same = document.text.encode() == (text.encode() if isinstance(text, str) else text)
    except NotSigned:
        raise
    except (ValueError, TypeError, RecursionError) as exc:
        raise NotSigned(f"it cannot be read: {exc}") from exc
    if not same:
        raise NotSigned("it is not in the canonical form: something in it was changed")
    return document


def read_members(members: Any) -> SignedDocument:
    """Read `SignedDocument.members`, without verifying the signature. Raises NotSigned."""
    if not isinstance(members, dict) or set(members) != _MEMBERS:
        raise NotSigned(f"it is not a JSON object of {', '.join(sorted(_MEMBERS))}")
    try:
        signature = b64decode(members["signature"], validate=True)
    except (ValueError, TypeError) as exc:
        raise NotSigned(f"it cannot be read: {exc}") from exc
    document = SignedDocument(
        str(members["kind"]), members["document"], str(members["signed_by"]), signature
    )
    if document.members != members or not isinstance(document.document, dict):
        raise NotSigned("it is not in the canonical form: something in it was changed")
    return document


KIND: Final = "certificate_key"
CERTIFICATE: Final = "certificate"
HEAD: Final = "head"
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


class SignedChain:
    """The end of a chain and its keys, the oldest first.

    `trusted`: ids of keys that may introduce themselves. If none is given, any key may begin the
    chain, and none may restart it; None: any key may do both.
    """

    def __init__(self, trusted: Collection[str] | None = ()) -> None:
        self.end = START
        self.keys: tuple[PublicKey, ...] = ()
        # documents that restarted the chain, the oldest first
        self.restarts: list[SignedDocument] = []
        self._trusted = trusted

    def check(self, document: SignedDocument) -> list[str]:
        """Return all that is wrong with what should be the next document."""
        try:
            signer = self._find_signer(document)
        except (KeyError, ValueError, TypeError) as error:
            return [f"it cannot be read: {error}"]
        faults = list(self.end.find_faults(document.number, document.document.get("previous")))
        if document.kind not in {KIND, CERTIFICATE}:
            faults.append(f"unknown document kind: {document.kind}")
        fault = self._find_signature_fault(document, signer)
        return faults if fault is None else [*faults, fault]

    def advance(self, document: SignedDocument) -> None:
        """Go on to a document that was checked."""
        if find_restart_key(document) is not None:
            self.restarts.append(document)
        if document.kind == KIND:
            self.keys += (read_public_key(document),)
        self.end = Link(self.end.number + 1, document.hash)

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
        if not self.keys and self._trusted and signer.id not in self._trusted:
            return f"the chain begins with key {signer.id}, which is none of the trusted"
        is_restart = self.keys and signer != self.keys[-1]
        if is_restart and self._trusted is not None and signer.id not in self._trusted:
            return (
                f"the chain restarts with key {signer.id}, which no key before it has signed"
                " and which is none of the trusted"
            )
        return None


_MOST_BYTES = 1024 * 1024


def sign_head(key: SigningKey, signed: Link, entry: Link) -> SignedDocument:
    """Sign where the chain and the ledger end."""
    ends = {"ledger": entry.members, "signed": signed.members}
    return sign_document(key, HEAD, {"at": format_instant(datetime.now(UTC)), **ends})


def read_ends(head: SignedDocument) -> tuple[Link, Link]:
    """Return where the chain and the ledger ended when a head was signed. Raises KeyError,
    TypeError and ValueError."""
    ends = (head.document[name] for name in ("signed", "ledger"))
    signed, entry = (Link(int(end["number"]), bytes.fromhex(end["hash"])) for end in ends)
    return signed, entry


class ChainHead:
    """The head in the bucket. All of it blocks, and raises ObjectStoreUnavailable."""

    def __init__(self, settings: BlobSettings, *, lock_days: int) -> None:
        self.key = f"{CERTIFICATES}{settings.ledger_prefix}head"
        self._object = LockedObject(settings, StorageKey(settings.s3_bucket, self.key))
        self._lock_days = lock_days

    def put(self, text: str) -> bool:
        """Write a signed document as the newest; return whether it is locked."""
        until = datetime.now(UTC) + timedelta(days=self._lock_days)
        return self._object.put(
            text.encode(),
            content_type="application/json",
            until=until if self._lock_days else None,
        )

    def versions(self) -> Iterator[SignedDocument]:
        """Yield what was written and is still there, without what is not signed.

        The latest alone may be that of a chain whose end was removed, and that went on. There may
        be a version for every minute of the time that they are locked.
        """
        for text in self._object.versions(limit=_MOST_BYTES):
            with suppress(NotSigned):
                document = read_document(text)
                if document.kind == HEAD:
                    yield document

    def is_locked(self) -> bool:
        """Return whether nobody can delete the newest version."""
        return self._object.is_locked()
