"""Registrations of models, and the metadata keys they have."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from sqlalchemy.ext.asyncio import AsyncConnection
from starlette.responses import Response

from inference_store.api import cursors
from inference_store.api.access import Access, Asking, GuardedRoute, Over, needs
from inference_store.api.answer import Answer, named
from inference_store.api.dependencies import IfMatch, LedgerOf, Reading, Settings, Writing
from inference_store.api.paths import ModelId
from inference_store.api.problems import refusals
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.metadata import KeyPage
from inference_store.api.schemas.registrations import (
    RegistrationBody,
    RegistrationPage,
    ShownRegistration,
)
from inference_store.store import key_registry, registrations, removed_models
from inference_store.store.access import Action
from inference_store.store.errors import Conflict, Invalid
from inference_store.store.key_registry import KeySeen
from inference_store.store.ledger import Body, Note
from inference_store.store.registrations import Details, Registration
from inference_store.store.rights import Right

router = APIRouter(route_class=GuardedRoute, tags=["models"])
_NEW = {"model": ShownRegistration, "description": "It is new."}


@router.get(
    "/models",
    response_model=RegistrationPage,
    responses=refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List models",
)
async def list_models(
    page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Registrations, in order of model id."""
    after = cursors.after(page.cursor, str)
    found = await registrations.page(
        connection, limit=page.limit + 1, after=after, within=access.reach
    )
    items, following = cursors.cut(found, page.limit, lambda each: each.model_id)
    return Answer({"items": [_shown(each) for each in items], "next": following})


@router.get(
    "/models/{model_id}",
    response_model=ShownRegistration,
    responses=refusals(404),
    openapi_extra=needs(Right.READ),
    summary="Read a model",
)
async def get_model(model_id: ModelId, connection: Reading, access: Asking) -> Answer:
    """A model's registration."""
    return _answer(await access.model(connection, model_id))


@router.put(
    "/models/{model_id}",
    response_model=ShownRegistration,
    responses=refusals(400, 404, 409, 412, 413, also={201: _NEW}),
    openapi_extra=needs(Right.ADMIN),
    summary="Register a model",
)
async def put_model(
    model_id: ModelId,
    body: RegistrationBody,
    connection: Writing,
    if_match: IfMatch,
    access: Asking,
) -> Answer:
    """Register a model, or replace what is said of it."""
    if not model_id:
        raise Invalid("A model's id has at least one character.")
    try:
        found, new = await _put(connection, access, model_id, body.details(), if_match)
    except Conflict:  # an event registered it meanwhile: it is asked whether that one may change
        found, new = await _put(connection, access, model_id, body.details(), if_match)
    action = Action.MODEL_REGISTERED if new else Action.MODEL_CHANGED
    await access.note(connection, action, found, revision=found.revision)
    return _answer(found, status=201 if new else 200)


@router.delete(
    "/models/{model_id}",
    status_code=204,
    response_class=Response,
    responses=refusals(404, 409),
    openapi_extra=needs(Right.ADMIN),
    summary="Remove a model",
)
async def delete_model(model_id: ModelId, ledger: LedgerOf, access: Asking) -> Response:
    """Remove a registration that has no inferences, with its retention policy."""

    async def said(connection: AsyncConnection) -> Body:
        await access.model(connection, model_id)
        return dict(await removed_models.removable(connection, model_id))

    note = Note(Action.MODEL_REMOVED, model_id, {})
    await ledger.write("model_removed", said, actor=access.who, note=note)
    return Response(status_code=204)


@router.get(
    "/models/{model_id}/metadata-keys",
    response_model=KeyPage,
    responses=refusals(404),
    openapi_extra=needs(Right.READ),
    summary="List metadata keys",
)
async def list_keys(
    model_id: ModelId,
    page: Annotated[PageParameters, Query()],
    connection: Reading,
    to: Settings,
    access: Asking,
) -> Answer:
    """Which metadata keys the model's inferences have: types, counts, examples, conflicts."""
    model = (await access.model(connection, model_id)).model
    after = cursors.after(page.cursor, str)
    found = await key_registry.keys(connection, model, limit=page.limit + 1, after=after)
    items, following = cursors.cut(found, page.limit, lambda each: each.name)
    number = await key_registry.count(connection, model)
    return Answer(
        {
            "items": [_key(each) for each in items],
            "next": following,
            "capped": number >= to.max_keys_per_model,
        }
    )


async def _put(
    connection: AsyncConnection,
    access: Access,
    model_id: str,
    details: Details,
    revision: int | None,
) -> tuple[Registration, bool]:
    """What was allowed of a model that is missing is not done to one that has come to be there."""
    missing = await access.to_register(connection, model_id, details.project_id)
    return await registrations.put(
        connection, model_id, details, revision=revision, must_be_new=missing
    )


def _key(seen: KeySeen) -> dict[str, Any]:
    return {
        "name": seen.name,
        "compared_as": sorted(seen.families),
        "conflict": seen.conflict,
        "count": sum(each.count for each in seen.types),
        "types": [named(each) for each in seen.types],
    }


def _answer(found: Registration, *, status: int = 200) -> Answer:
    return Answer(_shown(found), status_code=status, headers={"ETag": f'"{found.revision}"'})


def _shown(found: Registration) -> dict[str, Any]:
    mapping = found.output_mapping
    shown = named(found, "model", "output_mapping")
    return shown | {"output_mapping": mapping and mapping.model_dump(mode="json")}
