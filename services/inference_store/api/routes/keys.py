"""API keys: made, listed, rotated, revoked."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import Path, Query, Request

from inference_store.access import Action
from inference_store.access.credentials import ApiKey
from inference_store.access.rights import Grant, Right
from inference_store.api import cursors, time_pages
from inference_store.api.access import Access, Asking, Over, needs
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Reading, Writing
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.keys import KeyListPage, NewKey, NewSecret, Rotation, ShownApiKey
from inference_store.api.schemas.links import PageParameters
from inference_store.index import api_keys
from inference_store.inference.errors import Forbidden
from inference_store.platform.json_encoding import format_instant

router = make_router("keys and audit")
KeyId = Annotated[str, Path(pattern="^[a-z0-9]{1,32}$", examples=["k7mwx2ab9cde"])]
_NEEDED = needs(Right.ADMIN, Over.EVERYTHING)


@router.post(
    "/keys",
    status_code=201,
    response_model=NewSecret,
    responses=document_refusals(400, 413),
    openapi_extra=_NEEDED,
    summary="Make a key",
)
async def create_api_key(body: NewKey, connection: Writing, access: Asking) -> Answer:
    """Make a key. Its text is in this answer and nowhere else: of it, only a hash is kept."""
    grants = tuple(body.grants)
    _refuse_more(access, grants)
    _refuse_longer(access, body.expires_at)
    key, secret = await api_keys.create(
        connection, body.name, grants, by=access.caller.name, expires_at=body.expires_at
    )
    await access.note(connection, Action.KEY_CREATED, key=key.id, grants=_format_grants(key))
    location = {"Location": f"/v1/keys/{key.id}"}
    return Answer(NewSecret.show(key, key=secret.text), status_code=201, headers=location)


@router.get(
    "/keys",
    response_model=KeyListPage,
    responses=document_refusals(),
    openapi_extra=_NEEDED,
    summary="List keys",
)
async def list_api_keys(page: Annotated[PageParameters, Query()], connection: Reading) -> Answer:
    """Keys, the newest first; revoked ones too."""
    after = cursors.decode_time_key(page.cursor)
    keys = await api_keys.listed(connection, limit=page.limit + 1, after=after)
    items, following = time_pages.cut_page(keys, page.limit, "created_at")
    return Answer(KeyListPage(items=[ShownApiKey.show(key) for key in items], next=following))


@router.get(
    "/keys/{key_id}",
    response_model=ShownApiKey,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="Read a key",
)
async def get_api_key(key_id: KeyId, connection: Reading) -> Answer:
    """One key, without its text."""
    return Answer(ShownApiKey.show(await api_keys.get(connection, key_id)))


@router.post(
    "/keys/{key_id}/rotate",
    response_model=NewSecret,
    responses=document_refusals(400, 404, 409, 413),
    openapi_extra=_NEEDED,
    summary="Rotate a key",
)
async def rotate_api_key(
    key_id: KeyId, body: Rotation, request: Request, connection: Writing, access: Asking
) -> Answer:
    """Give a key a new text; the one before works on until the time that is given, if one is."""
    old_key = await api_keys.get(connection, key_id, lock=True)
    _refuse_more(access, old_key.grants)
    _refuse_longer(access, body.expires_at or old_key.expires_at)
    key, secret = await api_keys.rotate(
        connection,
        key_id,
        by=access.caller.name,
        old_works_until=body.old_works_until,
        expires_at=body.expires_at,
    )
    until = format_instant(key.old_works_until)
    await access.note(connection, Action.KEY_ROTATED, key=key_id, old_works_until=until)
    request.app.state.authenticator.keys.forget(key_id)
    return Answer(NewSecret.show(key, key=secret.text))


@router.post(
    "/keys/{key_id}/revoke",
    response_model=ShownApiKey,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="Revoke a key",
)
async def revoke_api_key(
    key_id: KeyId, request: Request, connection: Writing, access: Asking
) -> Answer:
    """Let a key work no more, on every replica within two seconds; it stays listed."""
    key = await api_keys.revoke(connection, key_id, by=access.caller.name)
    await access.note(connection, Action.KEY_REVOKED, key=key_id)
    request.app.state.authenticator.keys.forget(key_id)
    return Answer(ShownApiKey.show(key))


def _refuse_more(access: Access, grants: tuple[Grant, ...]) -> None:
    """Refuse a key that could do more than the caller, because the caller will see its text."""
    missing = access.caller.lacks(grants)
    if missing:
        names = ", ".join(f"`{right.value}`" for right in dict.fromkeys(missing))
        raise Forbidden(f"The key would have {names} where you have not: nobody gives more.")


def _refuse_longer(access: Access, expires_at: datetime | None) -> None:
    """Refuse a key that outlives the caller's own: by making new keys, an expiring key would never
    expire."""
    if access.caller.outlived_by(expires_at):
        own = format_instant(access.caller.expires_at)
        raise Forbidden(f"Your own key expires at {own}: give an `expires_at` no later than that.")


def _format_grants(key: ApiKey) -> list[dict[str, Any]]:
    return [grant.model_dump(mode="json", exclude={"role"}) for grant in key.grants]
