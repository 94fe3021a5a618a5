"""Registrations of models, and the metadata keys they have."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from fastapi import Depends, Query, Request
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.responses import Response

from inference_store.access import Action
from inference_store.access.rights import Right
from inference_store.api import cursors, project_moves
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import IfMatch, LedgerOf, Reading, Settings
from inference_store.api.paths import ModelId
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.metadata import KeyPage, ShownMetadataKey
from inference_store.api.schemas.parameters import PageParameters
from inference_store.api.schemas.projects import ModelParameters
from inference_store.api.schemas.registrations import (
    MoveWarning,
    PendingMove,
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
            current = (await registrations.find_by_ids(connection, [model_id])).get(model_id)
        if current is not None and current.project_id != body.project_id:
            return await self._move(model_id, body)
        async with self.engine.begin() as connection:
            missing = await self.access.check_registration(connection, model_id, body.project_id)
            return await self._write(connection, model_id, body, missing, self.expected)

    async def _move(self, model_id: str, body: RegistrationBody) -> Answer:
        """Move the model: the ledger has the move before it takes effect, and the rest is written
        after.

        After a crash in between, the model has moved, and the caller has no answer.
        """
        build_body = partial(
            project_moves.build_entry,
            access=self.access,
            model_id=model_id,
            body=body,
            expected=self.expected,
            grace_seconds=self.to.policy_grace_seconds,
        )
        await self.ledger.write(
            "model_moved", build_body, actor=self.access.who, note=project_moves.build_note
        )
        async with self.engine.begin() as connection:
            registration = await registrations.get(connection, model_id, lock=True)
            warning = await project_moves.warn(connection, registration)
            if registrations.details_of(registration) == body.details():
                return _build_answer(registration, warning=warning)
            expected = None if self.expected is None else self.expected + 1
            return await self._write(connection, model_id, body, False, expected, warning=warning)

    async def _write(
        self,
        connection: AsyncConnection,
        model_id: str,
        body: RegistrationBody,
        missing: bool,
        expected: int | None,
        *,
        warning: MoveWarning | None = None,
    ) -> Answer:
        """Write the registration.

        If the model was missing when access was checked, and exists by now, nothing is changed or
        moved.
        """
        if not missing:
            current = await registrations.get(connection, model_id)
            if current.project_id != body.project_id:
                raise Conflict(f"The model {model_id!r} has just been moved: try again.")
        registration, new = await registrations.put(
            connection, model_id, body.details(), revision=expected, must_be_new=missing
        )
        action = Action.MODEL_REGISTERED if new else Action.MODEL_CHANGED
        await self.access.note(connection, action, registration, revision=registration.revision)
        return _build_answer(registration, status=201 if new else 200, warning=warning)


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
    page: Annotated[ModelParameters, Query()], connection: Reading, access: Asking
) -> Answer:
    """Registrations, in order of model id."""
    after = cursors.decode_one(page.cursor, str)
    rows = await registrations.page(
        connection,
        limit=page.limit + 1,
        after=after,
        within=access.scope,
        project_id=page.project_id,
    )
    items, following = cursors.cut_page(rows, page.limit, lambda row: row.model_id)
    shown = [ShownRegistration.show(row, pending_move=_show_move(row)) for row in items]
    return Answer(RegistrationPage(items=shown, next=following))


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
    """Register a model, or replace what is said of it. Another `project_id` moves it: `warning`
    has the policies there. If they may delete what the present ones keep, these decide for a
    grace."""
    if not model_id:
        raise Invalid("A model's id has at least one character.")
    try:
        return await putting.put(model_id, body)
    except Conflict:  # an event registered it, or it was moved meanwhile: check everything again
        return await putting.put(model_id, body)


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

    async def build_body(connection: AsyncConnection) -> Body:
        await access.find_model(connection, model_id)
        return dict(await removed_models.describe_removal(connection, model_id))

    note = Note(Action.MODEL_REMOVED, model_id, {})
    await ledger.write("model_removed", build_body, actor=access.who, note=note)
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
    rows = await key_registry.keys(connection, model, limit=page.limit + 1, after=after)
    items, following = cursors.cut_page(rows, page.limit, lambda row: row.name)
    number = await key_registry.count(connection, model)
    shown, capped = [_show_key(row) for row in items], number >= to.max_keys_per_model
    return Answer(KeyPage(items=shown, next=following, capped=capped))


def _show_key(key: KeySeen) -> ShownMetadataKey:
    return ShownMetadataKey.show(
        key, compared_as=sorted(key.families), count=sum(type_seen.count for type_seen in key.types)
    )


def _build_answer(
    registered: Registration, *, status: int = 200, warning: MoveWarning | None = None
) -> Answer:
    more = {} if warning is None else {"warning": warning}
    shown = PutRegistration.show(registered, pending_move=_show_move(registered), **more)
    return Answer(shown, status_code=status, headers={"ETag": f'"{registered.revision}"'})


def _show_move(registered: Registration) -> PendingMove | None:
    at = registered.moves_at
    if at is None or at <= datetime.now(UTC):
        return None
    return PendingMove(from_project_id=registered.left_project_id, effective_at=at)
