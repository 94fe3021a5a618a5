"""The filter language: which parts of the standard are kept, and what a model's filters name."""

from typing import Any

from fastapi import Request

from inference_store.access.rights import Right
from inference_store.api.access import Asking, Over, needs
from inference_store.api.answer import Answer, JsonAnswer
from inference_store.api.dependencies import Reading
from inference_store.api.paths import ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.queryables import build_queryables
from inference_store.api.routers import make_router
from inference_store.api.schemas.language import ShownClass, ShownConformance
from inference_store.index import key_registry
from inference_store.query.cql2 import CONFORMANCE

router = make_router("filters")
SCHEMA = "application/schema+json"
_QUERYABLES: dict[int | str, dict[str, Any]] = {
    200: {"description": "A JSON Schema.", "content": {SCHEMA: {"schema": {"type": "object"}}}}
}


class SchemaAnswer(JsonAnswer):
    """A JSON Schema."""

    media_type = SCHEMA


@router.get(
    "/conformance",
    response_model=ShownConformance,
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List conformance classes",
)
async def get_conformance() -> Answer:
    """The conformance classes of OGC CQL2 (21-065r2): which are kept, and which are not."""
    classes = [ShownClass.show(conformance) for conformance in CONFORMANCE.values()]
    uris = [conformance.uri for conformance in CONFORMANCE.values() if conformance.kept]
    return Answer(ShownConformance(conformsTo=uris, classes=classes))


@router.get(
    "/models/{model_id}/queryables",
    response_class=SchemaAnswer,
    responses=document_refusals(404, also=_QUERYABLES),
    openapi_extra=needs(Right.READ),
    summary="Read what filters may name",
)
async def get_queryables(
    model_id: ModelId, connection: Reading, request: Request, access: Asking
) -> SchemaAnswer:
    """Every name that a filter on the model's inferences may use, as JSON Schema: properties,
    metadata keys with the types and examples seen, columns of predictions."""
    model = (await access.find_model(connection, model_id)).model
    keys = await key_registry.keys(connection, model)
    address = str(request.url.replace(query="", fragment=""))
    return SchemaAnswer(build_queryables(address, model_id, keys))
