"""The keys that sign documents, and that hash what these may not name.

A file of keys is PEM: the first private key signs, those after it have signed before. An old key
is kept there for two things: to sign the one that follows it, and because what its certificates
hash can be hashed again with it alone.
"""

import hmac
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Final

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

from inference_store.platform.settings import CertificateSettings, WrongSetting

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
