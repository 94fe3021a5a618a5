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
    SignedDocument,
)
from inference_store.erasure.certificates import chain, erased
from inference_store.erasure.certificates.chain import Row
from inference_store.erasure.certificates.signed import Signed, read_signed
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
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List certificates",
)
async def list_certificates(
    page: Annotated[CertificateParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Certificates of erasures, the newest first; of an erasure over several models only where
    everything may be read."""
    found = await chain.listed(
        connection,
        of=page.erasure,
        before=cursors.decode_one(page.cursor, int),
        limit=page.limit + 1,
        within=access.reach,
    )
    items, following = cursors.cut_page(found, page.limit, lambda each: each.number)
    return Answer({"items": [_format_row(each) for each in items], "next": following})


@router.get(
    "/certificates/keys",
    response_model=CertificateKeys,
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List the keys that sign certificates",
)
async def list_certificate_keys(connection: Reading) -> Answer:
    """The public keys of the chain, the oldest first: each is signed by the one before it."""
    return Answer({"items": [_format_key(each) for each in await chain.keys(connection)]})


@router.get(
    "/certificates/{certificate}",
    response_model=SignedDocument,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="Read a certificate",
)
async def get_certificate(certificate: Number, connection: Reading, access: Asking) -> Response:
    """The signed document of one certificate, as it was signed."""
    row = await _find_row(connection, access, certificate)
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
    await _find_row(connection, access, certificate)
    batches: Sequence[int] = await erased.of_certificate(connection, certificate)
    chunks = erased.chunks(request.app.state.engine, batches)
    return StreamingResponse(chunks, media_type=BYTES)


async def _find_row(connection: Reading, access: Access, number: int) -> Row:
    row = await chain.find(connection, number, within=access.reach)
    if row is None:
        raise NotFound(f"There is no certificate {number}.")
    return row


def _format_row(row: Row) -> dict[str, Any]:
    document = read_signed(row.signed).document
    return {
        "number": row.number,
        "erasure": row.erasure,
        "issued_at": row.issued_at,
        "model_ids": document["erasure"]["model_ids"],
        "erased": document["erased"],
        "hash": row.hash.hex(),
    }


def _format_key(one: Signed) -> dict[str, Any]:
    key = chain.public_key(one)
    return {
        "id": key.id,
        "public_key": key.text,
        "pem": key.pem,
        "number": one.document["number"],
        "signed_by": one.signed_by,
    }
