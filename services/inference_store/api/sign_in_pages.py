"""Routes for a browser without a session: how to sign in, and to sign in at the issuer.

These routes answer without a key, and say nothing of what is stored.
"""

from typing import Final

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from inference_store.access.sign_in_attempt import CALLBACK, Attempt
from inference_store.inference.errors import StoreError, TooManyRequests, Unauthorized, Unavailable
from inference_store.platform.settings import ApiSettings

from . import sessions
from .access import Authenticator, session_cookie
from .access.authenticator import find_client
from .answer import JsonAnswer
from .console import CONSOLE

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


def list_routes() -> list[BaseRoute]:
    """Return the routes; the OpenAPI has none of them, because programs do not sign in."""
    return [
        Route("/v1/session/ways", _list_ways, include_in_schema=False),
        Route(BEGIN, _begin, include_in_schema=False),
        Route(CALLBACK, _finish, include_in_schema=False),
    ]


async def _list_ways(request: Request) -> Response:
    """Answer how to sign in, besides with a key: in a browser, and at a command line."""
    sign_in = _authenticator(request).sign_in
    oidc = None if sign_in is None else {"name": sign_in.name, "url": sign_in.public_url + BEGIN}
    return JsonAnswer({"oidc": oidc, "device": _describe_device(request.app.state.settings)})


def _describe_device(to: ApiSettings) -> dict[str, str] | None:
    """Return what a client needs for the device flow; None: the settings name no client."""
    if to.auth == "off" or to.oidc_issuer is None or to.oidc_device_client_id is None:
        return None
    return {
        "issuer": to.oidc_issuer,
        "client_id": to.oidc_device_client_id,
        "scopes": to.oidc_scopes,
    }


async def _begin(request: Request) -> Response:
    """Send a browser to the issuer."""
    sign_in = _authenticator(request).require_sign_in()
    attempt = Attempt.begin()
    try:
        url = await sign_in.begin(attempt)
    except Unavailable:
        return _lead_to_console(sign_in.public_url, "unavailable")
    answer = RedirectResponse(url, _SEE_OTHER)
    session_cookie.set_cookie(answer, attempt.secret, name=_ATTEMPT, seconds=_ATTEMPT_SECONDS)
    return answer


async def _finish(request: Request) -> Response:
    """Sign a browser in that comes back from the issuer."""
    authenticator = _authenticator(request)
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
        _, id = await sessions.start(request, connection, identity, find_client(request))
    answer = _lead_to_console(sign_in.public_url)
    session_cookie.set_cookie(answer, id)
    return answer


def _lead_to_console(public_url: str, fault: str = "") -> Response:
    """Lead a browser to the console, which has kept its link itself: no server is told it."""
    url = f"{public_url}{CONSOLE}/" + (f"?sign-in={fault}" if fault else "")
    answer = RedirectResponse(url, _SEE_OTHER)
    session_cookie.clear_cookie(answer, name=_ATTEMPT)
    return answer


def _authenticator(request: Request) -> Authenticator:
    authenticator: Authenticator = request.app.state.authenticator
    return authenticator
