"""Signing in and out: the session of a browser."""

from fastapi import Request
from starlette.responses import Response

from inference_store.access.rights import ANYONE, Right
from inference_store.api import sessions
from inference_store.api.access import Asking, Authenticator, Over, needs, session_cookie
from inference_store.api.answer import Answer
from inference_store.api.dependencies import Writing
from inference_store.api.problems import document_refusals
from inference_store.api.routers import make_router
from inference_store.api.schemas.me import ShownSession
from inference_store.inference.errors import Conflict, NotFound, Unauthorized

router = make_router("keys and audit")
_NEEDED = needs(Right.READ, Over.CALLER)


@router.post(
    "/session",
    status_code=201,
    response_model=ShownSession,
    responses=document_refusals(409),
    openapi_extra=_NEEDED,
    summary="Sign in",
)
async def start_session(request: Request, connection: Writing, access: Asking) -> Answer:
    """Start a session with the key or token of this request, for a browser: a cookie names it, and
    the page need not keep the key. It ends with the key. Programs send their key each time."""
    if access.caller is ANYONE:
        raise Conflict("Access control is off: there is nothing to sign in to.")
    if access.session is not None:  # or it could prolong itself
        raise Unauthorized("A session starts with a key or token: send `Authorization: Bearer`.")
    authenticator: Authenticator = request.app.state.authenticator
    identity = await authenticator.describe(request, access.caller)
    session, id = await sessions.start(request, connection, identity, access.client)
    answer = Answer(ShownSession.show(session), status_code=201)
    session_cookie.set_cookie(answer, id)
    return answer


@router.delete(
    "/session",
    status_code=204,
    response_class=Response,
    responses=document_refusals(404),
    openapi_extra=_NEEDED,
    summary="Sign out",
)
async def end_session(request: Request, connection: Writing, access: Asking) -> Response:
    """End the session that the request is made in, on every replica within two seconds."""
    if access.session is None:
        raise NotFound("The request is made in no session.")
    await sessions.end(request, connection, access.client)
    answer = Response(status_code=204)
    session_cookie.clear_cookie(answer)
    return answer
