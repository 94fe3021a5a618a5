"""Certificates of erasures."""

from datetime import datetime
from typing import Any
from uuid import UUID

from inference_store.api.shown import Shown

from .fields import ShortText
from .parameters import PageParameters


class CertificateParameters(PageParameters):
    """Which page of which certificates."""

    erasure: UUID | None = None
    """Of this erasure."""
    model_id: ShortText | None = None
    """Of erasures of this model alone."""


class ListedCertificate(Shown):
    """A certificate in a list; the signed document is `GET /v1/certificates/{number}`."""

    number: int
    """Its place in the chain. Keys have places there as well."""
    erasure: UUID
    issued_at: datetime
    model_ids: list[str]
    erased: dict[str, Any]
    """Counts of inferences, objects, versions, bytes and rows; `oldest`, `newest`."""
    hash: str
    """SHA-256 of the signed document, which the next one of the chain names."""


class CertificatePage(Shown):
    """Certificates, the newest first."""

    items: list[ListedCertificate]
    next: str | None


class SignedDocument(Shown):
    """A signed document, byte by byte as it was signed and as it lies in the bucket: JSON with
    sorted names, without spaces, in ASCII."""

    document: dict[str, Any]
    """What is signed, in that same form."""
    kind: str
    """`certificate` or `certificate_key`."""
    signature: str
    """Ed25519, in base64, over `inference-store <kind>`, a line feed and the document."""
    signed_by: str
    """Id of the key."""


class ShownCertificateKey(Shown):
    """A key that signs certificates, or has."""

    id: str
    """The beginning of the SHA-256 of the public key, in hexadecimal."""
    public_key: str
    """Its 32 bytes, in base64."""
    pem: str
    number: int
    """From which place of the chain on it signs."""
    signed_by: str
    """The key before it; the first, and one that begins anew after a key was lost: itself."""


class CertificateKeys(Shown):
    """Keys, the oldest first."""

    items: list[ShownCertificateKey]
