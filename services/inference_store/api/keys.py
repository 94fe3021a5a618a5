"""API keys: made, listed, rotated, revoked. Below: the audit, which names them."""

from datetime import datetime
from operator import attrgetter
from typing import Annotated
from uuid import UUID

from fastapi import Path
from pydantic import ConfigDict, Field

from inference_store.access import Action
from inference_store.access.credentials import ApiKey
from inference_store.access.rights import Grant, Right
from inference_store.index import api_keys, audit
from inference_store.index.audit import AuditEntry, Filter
from inference_store.inference.errors import Forbidden
from inference_store.inference.field_docs import Body, Instant, ShortText
from inference_store.platform.json_encoding import format_instant

from .access import Access, Asking, Needs, Over
from .answer import Answer, Shown
from .dependencies import Reading, Writing
from .fields import InQuery, PageAnswer, PageParameters, by_time
from .routing import Router


class NewKey(Body):
    """A key to create. It cannot have more rights than its creator."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "hallway dashboard",
                    "grants": [{"role": "analyst", "model_id": "hallway-detector"}],
                    "expires_at": "2027-06-01T00:00:00Z",
                }
            ]
        }
    )

    name: Annotated[ShortText, Field(min_length=1)]
    """Who or what uses it, for people."""
    grants: Annotated[list[Grant], Field(min_length=1, max_length=100)]
    expires_at: Instant | None = None
    """When it stops working; left out: never."""


class Rotation(Body):
    """A new text for a key."""

    old_works_until: Instant | None = None
    """Until when the old text keeps working; left out: it stops at once."""
    expires_at: Instant | None = None
    """The key's new expiry; left out: unchanged."""


class ShownGrantedRights(Shown):
    """Rights over everything, a project, or a model."""

    rights: list[Right]
    project_id: str | None
    model_id: str | None


class ShownApiKey(ApiKey, Shown):
    """An API key, without its text."""

    grants: list[ShownGrantedRights]  # type: ignore[assignment]  # the rights of its role


class ApiKeySecret(ShownApiKey):
    """An API key with its text, which is shown this once and never again."""

    key: str = Field(examples=["isk_k7mwx2ab9cde_…"])


router = Router("keys and audit")
KeyId = Annotated[ShortText, Path(examples=["k7mwx2ab9cde"])]
_NEEDED = Needs(Right.ADMIN, Over.EVERYTHING)


@router.add("POST /keys", _NEEDED, "Make a key", status=201)
async def create_api_key(body: NewKey, connection: Writing, access: Asking) -> Answer[ApiKeySecret]:
    """Create a key. Its text is in this answer only: the store keeps just a hash of it."""
    grants = tuple(body.grants)
    _refuse_more(access, grants)
    _refuse_longer(access, body.expires_at)
    key, secret = await api_keys.create(
        connection, body.name, grants, by=access.caller.name, expires_at=body.expires_at
    )
    noted = [grant.model_dump(mode="json", exclude={"role"}) for grant in grants]
    await access.note(connection, Action.KEY_CREATED, key=key.id, grants=noted)
    shown = ApiKeySecret.show(key, key=secret.text)
    return Answer(shown, status_code=201, location=f"/v1/keys/{key.id}")


@router.add("GET /keys", _NEEDED, "List keys")
async def list_api_keys(
    page: InQuery[PageParameters], connection: Reading
) -> PageAnswer[ShownApiKey]:
    """Keys, the newest first, including revoked ones."""
    after = page.find_before(str)
    keys = await api_keys.listed(connection, limit=page.limit + 1, after=after)
    return page.answer(keys, ShownApiKey.show, by_time("created_at"))


@router.add("GET /keys/{key_id}", _NEEDED, "Read a key")
async def get_api_key(key_id: KeyId, connection: Reading) -> Answer[ShownApiKey]:
    """One key, without its text."""
    return Answer(ShownApiKey.show(await api_keys.get(connection, key_id)))


@router.add("POST /keys/{key_id}/rotate", _NEEDED, "Rotate a key", 409)
async def rotate_api_key(
    key_id: KeyId, body: Rotation, connection: Writing, access: Asking
) -> Answer[ApiKeySecret]:
    """Give a key a new text. The old one keeps working until `old_works_until`, if that is
    given."""
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
    access.app.authenticator.keys.forget(key_id)
    return Answer(ApiKeySecret.show(key, key=secret.text))


@router.add("POST /keys/{key_id}/revoke", _NEEDED, "Revoke a key")
async def revoke_api_key(key_id: KeyId, connection: Writing, access: Asking) -> Answer[ShownApiKey]:
    """Revoke a key. It stops working on every replica within two seconds, and stays listed."""
    key = await api_keys.revoke(connection, key_id, by=access.caller.name)
    await access.note(connection, Action.KEY_REVOKED, key=key_id)
    access.app.authenticator.keys.forget(key_id)
    return Answer(ShownApiKey.show(key))


def _refuse_more(access: Access, grants: tuple[Grant, ...]) -> None:
    """Refuse a key that could do more than the caller, because the caller will see its text."""
    missing = access.caller.lacks(grants)
    if missing:
        names = ", ".join(f"`{right.value}`" for right in dict.fromkeys(missing))
        raise Forbidden(
            f"The key would have {names} where you do not: nobody can grant more than they have."
        )


def _refuse_longer(access: Access, expires_at: datetime | None) -> None:
    """Refuse a key that outlives the caller's own: by making new keys, an expiring key would never
    expire."""
    if access.caller.outlived_by(expires_at):
        own = format_instant(access.caller.expires_at)
        raise Forbidden(f"Your own key expires at {own}: give an `expires_at` no later than that.")


# The audit: who did what, when, from where.


class AuditParameters(PageParameters):
    """Which page of which entries; everything that is given must hold."""

    actor: ShortText | None = None
    """`key:<id>`, `oidc:<subject>`, `token`, `cli:<user>`, or `anyone`."""
    action: Action | None = None
    """What was done."""
    model_id: ShortText | None = None
    """To which model."""
    uid: UUID | None = None
    """To which inference."""
    at_from: Annotated[Instant | None, Field(description="Then or later.")] = None
    at_to: Annotated[Instant | None, Field(description="Before then.")] = None


class ShownAuditEntry(AuditEntry, Shown):
    """An entry of the audit."""


@router.add("GET /audit", Needs(Right.ADMIN, Over.SOME), "Read the audit")
async def list_audit(
    page: InQuery[AuditParameters], connection: Reading, access: Asking
) -> PageAnswer[ShownAuditEntry]:
    """Every change and every read of an input, the newest first. Entries of no model are listed
    only for callers with `admin` over everything."""
    chosen = Filter(within=access.scope, **page.model_dump(exclude={"limit", "cursor"}))
    before = page.find_after(int)
    entries = await audit.listed(connection, chosen, limit=page.limit + 1, before=before)
    return page.answer(entries, ShownAuditEntry.show, attrgetter("id"))
