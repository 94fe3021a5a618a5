"""Certificates of erasures, the lists that they are over, and the keys that signed them."""

from collections.abc import AsyncIterator
from datetime import datetime
from operator import attrgetter
from typing import Annotated, Any
from uuid import UUID

from fastapi import Path
from fastapi.responses import Response, StreamingResponse

from inference_store.access.rights import Right
from inference_store.erasure import certificates, erased_lists
from inference_store.erasure.certificates import StoredDocument
from inference_store.erasure.log import CERTIFICATE, read_document, read_public_key
from inference_store.inference.errors import BlobMissing, NotFound
from inference_store.inference.field_docs import ShortText

from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .dependencies import Reading
from .fields import InQuery, PageAnswer, PageParameters
from .http import BYTES, JSON
from .routing import BINARY, Router


class CertificateParameters(PageParameters):
    """Which page of which certificates."""

    erasure: UUID | None = None
    """Of this erasure."""
    model_id: ShortText | None = None
    """Of erasures of this model only."""


class ListedCertificate(Shown):
    """A certificate in a list; the signed document is `GET /v1/certificates/{number}`."""

    number: int
    """Its place in the chain, in which keys have places too."""
    erasure: UUID
    issued_at: datetime
    model_ids: list[str]
    erased: dict[str, Any]
    """Counts of inferences, objects, versions, bytes and rows; `oldest`, `newest`."""
    hash: str
    """SHA-256 of the signed document, which the next one of the chain names."""


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
    """A key that signs certificates, or has signed them."""

    id: str
    """The beginning of the SHA-256 of the public key, in hexadecimal."""
    public_key: str
    """Its 32 bytes, in base64."""
    pem: str
    number: int
    """The place in the chain from which it signs."""
    signed_by: str
    """The previous key; itself, if it is the first or restarts the chain after a loss."""


class CertificateKeys(Shown):
    """Keys, the oldest first."""

    items: list[ShownCertificateKey]


router = Router("retention")
_NEEDED = Needs(Right.READ, Over.SOME)
Number = Annotated[int, Path(ge=1, lt=2**63)]
_LEAVES: dict[int | str, dict[str, Any]] = {
    200: {"content": {BYTES: BINARY}, "description": "Entries of 33 bytes, one after the other."}
}


@router.add("GET /certificates", _NEEDED, "List certificates", 404)
async def list_certificates(
    page: InQuery[CertificateParameters], connection: Reading, access: Asking
) -> PageAnswer[ListedCertificate]:
    """Certificates of erasures, the newest first. Those of several models are listed only for
    callers who may read everything."""
    model = None if page.model_id is None else await access.find_model(connection, page.model_id)
    rows = await certificates.list_certificates(
        connection,
        erasure_id=page.erasure,
        model=None if model is None else model.model,
        before=page.find_after(int),
        limit=page.limit + 1,
        within=access.scope,
    )
    return page.answer(rows, _show_row, attrgetter("number"))


@router.add("GET /certificates/keys", _NEEDED, "List the keys that sign certificates")
async def list_certificate_keys(connection: Reading) -> Answer[CertificateKeys]:
    """The public keys of the chain, the oldest first: each is signed by the one before it."""
    shown: list[ShownCertificateKey] = []
    for document in await certificates.find_keys(connection):
        key, about = read_public_key(document), {"signed_by": document.signed_by}
        about |= {"number": document.number, "public_key": key.text}
        shown.append(ShownCertificateKey.show(key, **about))
    return Answer(CertificateKeys(items=shown))


@router.add("GET /certificates/{certificate}", _NEEDED, "Read a certificate", answer=SignedDocument)
async def get_certificate(certificate: Number, connection: Reading, access: Asking) -> Response:
    """The signed document at a place of the chain, as it was signed: a certificate, or the document
    that introduces a key."""
    return Response((await _find(connection, access, certificate)).signed, media_type=JSON)


@router.add(
    "GET /certificates/{certificate}/leaves", _NEEDED, "Read a certificate's list", also=_LEAVES
)
async def get_certificate_leaves(
    certificate: Number, connection: Reading, access: Asking
) -> StreamingResponse:
    """The entries that the certificate's root is over. Each is a letter (`i` inference, `d` input,
    `r` response, `o` object) and a keyed hash of 32 bytes."""
    stored = await _find(connection, access, certificate, kind=CERTIFICATE)
    leaves = read_document(stored.signed).document["leaves"]
    pieces = erased_lists.read_list(access.ledger.blobs, leaves["root"], size=leaves["count"])
    try:
        # before the answer begins, which cannot say any more that something is wrong
        first = await anext(pieces, b"")
    except BlobMissing as missing:
        reason = f"The list of certificate {certificate} is not in the bucket."
        raise NotFound(reason) from missing
    return StreamingResponse(_go_on(first, pieces), media_type=BYTES)


async def _go_on(first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in pieces:
        yield piece


async def _find(
    connection: Reading, access: Access, number: int, *, kind: str | None = None
) -> StoredDocument:
    document = await certificates.find_document(connection, number, within=access.scope)
    if document is None or kind not in (None, document.kind):
        raise NotFound(f"There is no certificate {number}.")
    return document


def _show_row(row: StoredDocument) -> ListedCertificate:
    document = read_document(row.signed).document
    return ListedCertificate.show(
        row,
        model_ids=document["erasure"]["model_ids"],
        erased=document["erased"],
        hash=row.hash.hex(),
    )
