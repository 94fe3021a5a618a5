"""Certificates of erasures, the lists that they are over, and the keys that signed them."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from inference_store.access.rights import Right
from inference_store.api import cursors
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading
from inference_store.api.negotiation import BYTES, JSON
from inference_store.api.openapi import BINARY
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.certificates import (
    CertificateKeys,
    CertificatePage,
    CertificateParameters,
    ListedCertificate,
    ShownCertificateKey,
    SignedDocument,
)
from inference_store.erasure.certify import chain, erased_lists
from inference_store.erasure.certify.chain import StoredDocument
from inference_store.erasure.log import signed_chain
from inference_store.erasure.log.signed_chain import read_document, read_public_key
from inference_store.inference.errors import NotFound

router = make_router("retention")
Number = Annotated[int, Path(ge=1, lt=2**63)]
_LEAVES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {BYTES: BINARY},
        "description": "Entries of 33 bytes, one after the other.",
    }
}


@router.get(
    "/certificates",
    response_model=CertificatePage,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List certificates",
)
async def list_certificates(
    page: Annotated[CertificateParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Certificates of erasures, the newest first; of an erasure over several models only where
    everything may be read."""
    model = None if page.model_id is None else await access.find_model(connection, page.model_id)
    rows = await chain.list_certificates(
        connection,
        erasure_id=page.erasure,
        model=None if model is None else model.model,
        before=cursors.decode_one(page.cursor, int),
        limit=page.limit + 1,
        within=access.scope,
    )
    items, following = cursors.cut_page(rows, page.limit, lambda row: row.number)
    return Answer(CertificatePage(items=[_show_row(row) for row in items], next=following))


@router.get(
    "/certificates/keys",
    response_model=CertificateKeys,
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List the keys that sign certificates",
)
async def list_certificate_keys(connection: Reading) -> Answer:
    """The public keys of the chain, the oldest first: each is signed by the one before it."""
    keys = [_show_key(key_document) for key_document in await chain.find_keys(connection)]
    return Answer(CertificateKeys(items=keys))


@router.get(
    "/certificates/{certificate}",
    response_model=SignedDocument,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Read a certificate",
)
async def get_certificate(certificate: Number, connection: Reading, access: Asking) -> Response:
    """The signed document at a place of the chain, as it was signed: a certificate, or the document
    that introduces a key."""
    row = await chain.find_document(connection, certificate, within=access.scope)
    if row is None:
        raise _make_not_found(certificate)
    return Response(row.signed, media_type=JSON)


@router.get(
    "/certificates/{certificate}/leaves",
    response_class=StreamingResponse,
    responses=document_refusals(404, also=_LEAVES),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Read a certificate's list",
)
async def get_certificate_leaves(
    certificate: Number, request: Request, connection: Reading, access: Asking
) -> StreamingResponse:
    """The entries that the certificate's root is over. Each is a letter (`i` inference, `d` input,
    `r` response, `o` object) and a keyed hash of 32 bytes."""
    await _check_certificate(connection, access, certificate)
    batches: Sequence[int] = await erased_lists.find_batches(connection, certificate)
    chunks = erased_lists.read_chunks(request.app.state.engine, batches)
    return StreamingResponse(chunks, media_type=BYTES)


async def _check_certificate(connection: Reading, access: Access, number: int) -> None:
    if await chain.find_certificate(connection, number, within=access.scope) is None:
        raise _make_not_found(number)


def _make_not_found(number: int) -> NotFound:
    return NotFound(f"There is no certificate {number}.")


def _show_row(row: StoredDocument) -> ListedCertificate:
    document = read_document(row.signed).document
    return ListedCertificate.show(
        row,
        model_ids=document["erasure"]["model_ids"],
        erased=document["erased"],
        hash=row.hash.hex(),
    )


def _show_key(key_document: signed_chain.SignedDocument) -> ShownCertificateKey:
    key = read_public_key(key_document)
    number, text = key_document.document["number"], key.text
    return ShownCertificateKey.show(
        key, public_key=text, number=number, signed_by=key_document.signed_by
    )
