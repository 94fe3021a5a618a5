"""Registrations of models, and the metadata keys they have."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import cursors, moves
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer, to_dict
from inference_store.api.dependencies import IfMatch, LedgerOf, Reading, Settings, querying
from inference_store.api.paths import ModelId
from inference_store.api.policy_changes import format_would_delete as shown_lost
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.links import PageParameters
from inference_store.api.schemas.metadata import KeyPage
from inference_store.api.schemas.registrations import (
    MovePreview,
    PutRegistration,
    RegistrationBody,
    RegistrationPage,
    ShownRegistration,
)
from inference_store.erasure.housekeeping import removed_models
from inference_store.erasure.ledger import Body, Ledger, Note
from inference_store.index import key_registry, registrations
from inference_store.index.key_registry import KeySeen
from inference_store.index.registrations import Registration
from inference_store.inference.errors import Conflict, Invalid
from inference_store.platform.settings import ApiSettings

router = make_router("models")
_NEW = {"model": PutRegistration, "description": "It is new."}


@dataclass(frozen=True, slots=True)
class _RegistrationPut:
    """A registration that is being put: by whom, and the revision that it must have now."""

    request: Request
    to: ApiSettings
    access: Access
    ledger: Ledger
    expected: int | None

    @property
    def engine(self) -> AsyncEngine:
        """The engine that it is written by."""
        engine: AsyncEngine = self.request.app.state.engine
        return engine

    async def put(self, model_id: str, body: RegistrationBody) -> Answer:
        """Put the registration. Raises Conflict if somebody else has put it meanwhile."""
        async with self.engine.connect() as connection:
            there = (await registrations.known(connection, [model_id])).get(model_id)
        if moves.is_move(there, body):
            return await self._move(model_id, body)
        async with self.engine.begin() as connection:
            missing = await self.access.check_registration(connection, model_id, body.project_id)
            return await self._write(connection, model_id, body, missing, self.expected)

    async def _move(self, model_id: str, body: RegistrationBody) -> Answer:
        """Move the model: the ledger has the move before it takes effect, and the rest is written
        after.

        After a crash in between, the model has moved, and the caller has no answer.
        """
        seconds, project_id = self.to.policy_preview_seconds, body.project_id
        async with querying(self.request, self.access) as connection:
            lost = await moves.estimate_move(
                connection, self.access, model_id, project_id, seconds=seconds
            )
        said = partial(
            moves.build_entry,
            access=self.access,
            model_id=model_id,
            body=body,
            expected=self.expected,
            grace_seconds=0.0 if lost.harmless else self.to.policy_grace_seconds,
            unmeasured=lost.unmeasured if lost.tightened else 0,
        )
        await self.ledger.write("model_moved", said, actor=self.access.who, note=moves.build_note)
        told: dict[str, Any] = {"would_delete": shown_lost(lost)}
        async with self.engine.begin() as connection:
            found = await registrations.get(connection, model_id, lock=True)
            if registrations.details_of(found) == body.details():
                return _build_answer(found, **told)
            expected = None if self.expected is None else self.expected + 1
            return await self._write(connection, model_id, body, False, expected, **told)

    async def _write(
        self,
        connection: AsyncConnection,
        model_id: str,
        body: RegistrationBody,
        missing: bool,
        expected: int | None,
        **told: Any,
    ) -> Answer:
        """Write the registration.

        If the model was missing when access was checked, and exists by now, nothing is changed or
        moved.
        """
        if not missing:
            there = await registrations.get(connection, model_id)
            if there.project_id != body.project_id:
                raise Conflict(f"The model {model_id!r} has just been moved: try again.")
        found, new = await registrations.put(
            connection, model_id, body.details(), revision=expected, must_be_new=missing
        )
        action = Action.MODEL_REGISTERED if new else Action.MODEL_CHANGED
        await self.access.note(connection, action, found, revision=found.revision)
        return _build_answer(found, status=201 if new else 200, **told)


async def _prepare_put(
    request: Request, to: Settings, access: Asking, ledger: LedgerOf, if_match: IfMatch
) -> _RegistrationPut:
    return _RegistrationPut(request, to, access, ledger, if_match)


@router.get(
    "/models",
    response_model=RegistrationPage,
    responses=document_refusals(),
    openapi_extra=needs(Right.READ, Over.SOME),
    summary="List models",
)
async def list_models(
    page: Annotated[PageParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Registrations, in order of model id."""
    after = cursors.decode_one(page.cursor, str)
    found = await registrations.page(
        connection, limit=page.limit + 1, after=after, within=access.reach
    )
    items, following = cursors.cut_page(found, page.limit, lambda each: each.model_id)
    return Answer({"items": [_format_registration(each) for each in items], "next": following})


@router.get(
    "/models/{model_id}",
    response_model=ShownRegistration,
    responses=document_refusals(404),
    openapi_extra=needs(Right.READ),
    summary="Read a model",
)
async def get_model(model_id: ModelId, connection: Reading, access: Asking) -> Answer:
    """A model's registration."""
    return _build_answer(await access.find_model(connection, model_id))


@router.put(
    "/models/{model_id}",
    response_model=PutRegistration,
    responses=document_refusals(400, 404, 409, 412, 413, also={201: _NEW}),
    openapi_extra=needs(Right.ADMIN),
    summary="Register a model",
)
async def put_model(
    model_id: ModelId,
    body: RegistrationBody,
    putting: Annotated[_RegistrationPut, Depends(_prepare_put)],
) -> Answer:
    """Register a model, or replace what is said of it. Where another `project_id` puts it under
    policies that would delete something, those of the project that it leaves decide for a grace."""
    if not model_id:
        raise Invalid("A model's id has at least one character.")
    try:
        return await putting.put(model_id, body)
    except Conflict:  # an event registered it, or it was moved meanwhile: check everything again
        return await putting.put(model_id, body)


@router.post(
    "/models/{model_id}/preview",
    response_model=MovePreview,
    responses=document_refusals(400, 404, 413),
    openapi_extra=needs(Right.ADMIN),
    summary="What a move to another project would delete",
)
async def preview_move(
    model_id: ModelId, body: RegistrationBody, request: Request, to: Settings, access: Asking
) -> Answer:
    """The same as a PUT, without moving; its token lets the move count at once."""
    seconds, project_id = to.policy_preview_seconds, body.project_id
    async with querying(request, access) as connection:
        lost = await moves.estimate_move(connection, access, model_id, project_id, seconds=seconds)
    engine: AsyncEngine = request.app.state.engine
    async with engine.begin() as connection:
        token = await moves.make_token(connection, access, model_id, project_id)
    grace = 0.0 if lost.harmless else to.policy_grace_seconds
    return Answer({"would_delete": shown_lost(lost), "grace_seconds": grace, "token": token})


@router.delete(
    "/models/{model_id}",
    status_code=204,
    response_class=Response,
    responses=document_refusals(404, 409),
    openapi_extra=needs(Right.ADMIN),
    summary="Remove a model",
)
async def delete_model(model_id: ModelId, ledger: LedgerOf, access: Asking) -> Response:
    """Remove a registration that has no inferences, with its retention policy."""

    async def said(connection: AsyncConnection) -> Body:
        await access.find_model(connection, model_id)
        return dict(await removed_models.removable(connection, model_id))

    note = Note(Action.MODEL_REMOVED, model_id, {})
    await ledger.write("model_removed", said, actor=access.who, note=note)
    return Response(status_code=204)


@router.get(
    "/models/{model_id}/metadata-keys",
    response_model=KeyPage,
    responses=document_refusals(404),
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
    model = (await access.find_model(connection, model_id)).model
    after = cursors.decode_one(page.cursor, str)
    found = await key_registry.keys(connection, model, limit=page.limit + 1, after=after)
    items, following = cursors.cut_page(found, page.limit, lambda each: each.name)
    number = await key_registry.count(connection, model)
    return Answer(
        {
            "items": [_format_key(each) for each in items],
            "next": following,
            "capped": number >= to.max_keys_per_model,
        }
    )


def _format_key(seen: KeySeen) -> dict[str, Any]:
    return {
        "name": seen.name,
        "compared_as": sorted(seen.families),
        "conflict": seen.conflict,
        "count": sum(each.count for each in seen.types),
        "types": [to_dict(each) for each in seen.types],
    }


def _build_answer(found: Registration, *, status: int = 200, **more: Any) -> Answer:
    headers = {"ETag": f'"{found.revision}"'}
    return Answer(_format_registration(found) | more, status_code=status, headers=headers)


def _format_registration(found: Registration) -> dict[str, Any]:
    mapping, at = found.output_mapping, found.moves_at
    waits = at is not None and at > datetime.now(UTC)
    move = {"from_project_id": found.left_project_id, "effective_at": at} if waits else None
    shown = to_dict(found, "model", "output_mapping", "left_project_id", "moves_at")
    told = {"output_mapping": mapping and mapping.model_dump(mode="json"), "pending_move": move}
    return shown | told
