"""Who the caller is, and the session of a browser: signed in with a key, or at the issuer.

The routes for a browser without a session answer without a key, and say nothing of what is stored.
"""

from datetime import datetime
from importlib.metadata import version
from typing import Final, Literal, get_args

import structlog
from fastapi import Request
from pydantic import Field
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from inference_store.access import Action, Who
from inference_store.access.credentials import Identity, Session, hash_session_id
from inference_store.access.rights import ANYONE, ROLES, Grant, Right, Role
from inference_store.access.sign_in_attempt import CALLBACK, Attempt
from inference_store.index import web_sessions
from inference_store.index.audit import note
from inference_store.inference.errors import (
    Conflict,
    NotFound,
    StoreError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from inference_store.platform.json_encoding import format_instant
from inference_store.platform.settings import ApiSettings

from . import authentication
from .access import Asking, Needs, Over
from .answer import Answer, Shown
from .authentication import Authenticator, find_client
from .dependencies import Writing
from .keys import ShownGrantedRights
from .routing import Router
from .site import CONSOLE


class OwnGrant(ShownGrantedRights):
    """Rights over everything, a project, or a model."""

    role: Role | None
    """The role that has exactly these rights; null if none has."""
    model_id: str | None
    """Null, like `project_id`: over everything."""


class OwnLimits(Shown):
    """The limits of one caller on one process of the api."""

    requests_per_minute: int | None
    """Null if there is no limit."""
    body_bytes: int
    """The most bytes of a request's body."""
    queries_at_once: int
    """Further queries wait for their turn."""
    streams_at_once: int
    query_timeout_seconds: float
    presigned_url_seconds: int


class Features(Shown):
    """The features that this api has enabled."""

    access_control: bool
    """False: anyone who reaches the api may do everything."""
    oidc: bool
    """Whether tokens of an OIDC issuer are accepted."""
    presigned_urls: bool
    """False: blobs can be read through the api only."""
    thumbnails: bool
    """Whether thumbnails of inputs are made."""
    replays: bool
    """Whether stored requests can be sent again."""
    read_replica: bool
    """Whether a replica answers queries, which may lag behind."""


class ShownSession(Shown):
    """The session of a browser that is signed in."""

    started_at: datetime
    idle_until: datetime
    """When it ends, unless it is used before."""
    expires_at: datetime
    """When it ends in any case."""


class ShownCaller(Shown):
    """The caller, their rights and limits, and the features that this api has enabled."""

    kind: Literal["anyone", "token", "key", "oidc"]
    """`anyone`: access control is off; `token`: the token of the settings."""
    name: str = Field(examples=["key:k7mwx2ab9cde"])
    """How the audit names them."""
    display_name: str | None = Field(examples=["hallway dashboard"])
    """The name of their key, or the subject of their token; null if there is neither."""
    expires_at: datetime | None
    """When their key expires; null if it never does, or they have none."""
    session: ShownSession | None
    """The session of the request; null if it was made with a key or token, or with neither."""
    rights: list[Right]
    """Every right that they have over something. Without `read` they see nothing."""
    rights_over_everything: list[Right]
    grants: list[OwnGrant]
    """Their rights, and over what. All of them apply together."""
    limits: OwnLimits
    switched_on: Features
    version: str
    """Of this api."""


router = Router("keys and audit")
_log = structlog.get_logger()
BEGIN: Final = "/v1/session/oidc/begin"
_ATTEMPT: Final = "__Host-inference-store-sign-in"
_ATTEMPT_SECONDS: Final = 600
_SEE_OTHER: Final = 303
_REASONS: Final[dict[type[StoreError], str]] = {
    Unauthorized: "refused",
    Unavailable: "unavailable",
    TooManyRequests: "later",
}
"""What the console is told if it did not work; the log has more."""
_NEEDED = Needs(Right.READ, Over.CALLER)


@router.add("POST /session", _NEEDED, "Sign in", 409, status=201)
async def start_session(connection: Writing, access: Asking) -> Answer[ShownSession]:
    """Start a session for a browser with the key or token of this request. A cookie identifies it,
    so that the page does not have to keep the key. It ends with the key. Programs send their key
    with each request."""
    if access.caller is ANYONE:
        detail = "Access control is off, so there is nothing to sign in to: send no key."
        raise Conflict(detail, at="header.authorization")
    if access.session is not None:  # or it could prolong itself
        raise Unauthorized("A session starts with a key or token: send `Authorization: Bearer`.")
    authenticator: Authenticator = access.app.authenticator
    identity = await authenticator.describe(access.request, access.caller)
    session, id = await _start(access.request, connection, identity, access.client)
    answer = Answer(ShownSession.show(session), status_code=201)
    authentication.set_cookie(answer, id)
    return answer


@router.add("DELETE /session", _NEEDED, "Sign out", 404, status=204)
async def end_session(connection: Writing, access: Asking) -> Response:
    """End the session of the request, on every replica within two seconds."""
    if access.session is None:
        raise NotFound("The request has no session.")
    await _end(access.request, connection, access.client)
    answer = Response(status_code=204)
    authentication.clear_cookie(answer)
    return answer


@router.add("GET /me", _NEEDED, "Read what you may do")
async def get_me(access: Asking) -> Answer[ShownCaller]:
    """Who the caller is, what they may do with which models, their limits, and the features that
    this api has enabled."""
    caller, to = access.caller, access.settings
    kind, _, rest = caller.name.partition(":")
    is_on = to.auth == "on"
    return Answer(
        ShownCaller.show(
            caller,
            kind=kind,
            display_name=rest if kind == "oidc" else caller.display_name,
            session=None if access.session is None else ShownSession.show(access.session),
            rights=[right for right in Right if not caller.scope(right).is_nothing],
            rights_over_everything=[right for right in Right if caller.scope(right).is_everything],
            grants=[_show_grant(grant) for grant in caller.grants],
            limits=OwnLimits.show(
                to,
                requests_per_minute=(to.api_rate_limit_per_minute or None) if is_on else None,
                body_bytes=to.api_max_body_bytes,
                queries_at_once=to.most_queries_of_one,
                streams_at_once=to.most_streams_of_one,
            ),
            switched_on=Features(
                access_control=is_on,
                oidc=is_on and to.oidc_issuer is not None,
                presigned_urls=to.presigned_urls == "on",
                thumbnails=to.thumbnail_processes > 0,
                replays=to.replay_proxy is not None,
                read_replica=to.postgres_read_dsn is not None,
            ),
            version=version("inference-store"),
        )
    )


def _show_grant(grant: Grant) -> OwnGrant:
    roles: tuple[Role, ...] = get_args(Role)
    return OwnGrant.show(
        grant,
        rights=[right for right in Right if right in grant.held],
        role=next((role for role in roles if ROLES[role] == grant.held), None),
    )


async def _start(
    request: Request, connection: AsyncConnection, identity: Identity, client: str | None
) -> tuple[Session, str]:
    to: ApiSettings = request.app.state.settings
    await _end(request, connection, client)
    session, id = await web_sessions.start(
        connection,
        identity,
        authentication.get_own_host(request),
        seconds=to.api_session_seconds,
        idle_seconds=to.api_session_idle_seconds,
    )
    who, until = Who(identity.caller, client), format_instant(session.expires_at)
    started = Action.SESSION_STARTED
    await note(connection, who, started, session=session.label, expires_at=until)
    return session, id


async def _end(request: Request, connection: AsyncConnection, client: str | None) -> None:
    id = authentication.read_cookie(request)
    ended = None if id is None else await web_sessions.end(connection, hash_session_id(id))
    if ended is not None:
        who = Who(ended.identity.caller, client)
        await note(connection, who, Action.SESSION_ENDED, session=ended.label)
        authenticator: Authenticator = request.app.state.authenticator
        authenticator.sessions.forget(ended.id_hash)


async def _list_ways(request: Request) -> Response:
    authenticator: Authenticator = request.app.state.authenticator
    sign_in = authenticator.sign_in
    oidc = None if sign_in is None else {"name": sign_in.name, "url": sign_in.public_url + BEGIN}
    to: ApiSettings = request.app.state.settings
    device, client = None, to.oidc_device_client_id
    if to.auth != "off" and to.oidc_issuer is not None and client is not None:
        device = {"issuer": to.oidc_issuer, "client_id": client, "scopes": to.oidc_scopes}
    return Answer({"oidc": oidc, "device": device})


async def _begin(request: Request) -> Response:
    authenticator: Authenticator = request.app.state.authenticator
    sign_in = authenticator.require_sign_in()
    attempt = Attempt.begin()
    try:
        url = await sign_in.begin(attempt)
    except Unavailable:
        return _lead_to_console(sign_in.public_url, "unavailable")
    answer = RedirectResponse(url, _SEE_OTHER)
    authentication.set_cookie(answer, attempt.secret, name=_ATTEMPT, seconds=_ATTEMPT_SECONDS)
    return answer


async def _finish(request: Request) -> Response:
    authenticator: Authenticator = request.app.state.authenticator
    sign_in = authenticator.require_sign_in()
    secret = request.cookies.get(_ATTEMPT)
    if not secret:  # it began elsewhere, or too long ago
        _log.info("sign-in expired", action="sign_in_expired", client=find_client(request))
        return _lead_to_console(sign_in.public_url, "expired")
    try:
        with authenticator.limit_failures(request):
            identity = await sign_in.finish(Attempt(secret), dict(request.query_params))
    except tuple(_REASONS) as refusal:
        reason = next(why for kind, why in _REASONS.items() if isinstance(refusal, kind))
        _log.warning(
            "sign-in refused",
            action="sign_in_refused",
            reason=reason,
            error=str(refusal),
            client=find_client(request),
        )
        return _lead_to_console(sign_in.public_url, reason)
    engine: AsyncEngine = request.app.state.engine
    async with engine.begin() as connection:
        _, id = await _start(request, connection, identity, find_client(request))
    answer = _lead_to_console(sign_in.public_url)
    authentication.set_cookie(answer, id)
    return answer


def _lead_to_console(public_url: str, fault: str = "") -> Response:
    """Lead a browser to the console, which has kept its link itself: no server is told it."""
    url = f"{public_url}{CONSOLE}/" + (f"?sign-in={fault}" if fault else "")
    answer = RedirectResponse(url, _SEE_OTHER)
    authentication.clear_cookie(answer, name=_ATTEMPT)
    return answer


ROUTES: Final = (
    Route("/v1/session/ways", _list_ways, include_in_schema=False),
    Route(BEGIN, _begin, include_in_schema=False),
    Route(CALLBACK, _finish, include_in_schema=False),
)
"""For browsers: the OpenAPI has none of them, because programs do not sign in."""
