"""The matches before and after one inference: to leaf through them from wherever one is."""

from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.access.rights import Right
from inference_store.api.access import Asking, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Querying, Settings
from inference_store.api.filters import read_requested_filter
from inference_store.api.inference_pages import set_deadline
from inference_store.api.paths import ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.query_timing import limit_query_time
from inference_store.api.routers import make_router
from inference_store.api.schemas.neighbours import Neighbour, NeighbourQuery, Neighbours
from inference_store.query.pages import describe_narrowing, find_neighbours
from inference_store.query.preparation import prepare
from inference_store.query.read import read
from inference_store.query.sort import resolve_sort

router = make_router("inferences")


@router.post(
    "/models/{model_id}/inferences/neighbours",
    response_model=Neighbours,
    responses=document_refusals(400, 404, 413, 501),
    openapi_extra=needs(Right.READ),
    summary="Find the inferences before and after one",
)
async def query_neighbours(
    model_id: ModelId, body: NeighbourQuery, connection: Querying, to: Settings, access: Asking
) -> Answer:
    """The nearest inference before and the nearest after `uid`, in the order of `sort`, that
    satisfy every condition."""
    registration, extent = await access.find_model_to_query(connection, model_id)
    filter = await read_requested_filter(body.filter, body.filter_lang)
    question = body.to_query_request(filter.tree)
    prepared = await prepare(connection, registration.model, question, extent)
    sort = await resolve_sort(connection, registration.model, body.sort)
    with limit_query_time("page", describe_narrowing(sort), prepared.query):
        sides = await find_neighbours(
            connection, prepared.query, sort, body.uid, set_deadline(body, to)
        )
        neighbours = [await _show(connection, registration.model, uid) for uid, _ in sides]
    # what was erased meanwhile may have another behind it
    complete = all(
        neighbour is not None or (uid is None and is_sure)
        for neighbour, (uid, is_sure) in zip(neighbours, sides, strict=True)
    )
    return Answer(
        Neighbours(
            before=neighbours[0],
            after=neighbours[1],
            complete=complete,
            warnings=[*prepared.warnings, *sort.warnings],
            **filter.answer_members,
        ),
    )


async def _show(connection: AsyncConnection, model: int, uid: UUID | None) -> Neighbour | None:
    inferences = await read(connection, model, [] if uid is None else [uid])
    return Neighbour.model_validate(dict(inferences[0].row)) if inferences else None
