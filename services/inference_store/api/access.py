"""Who may ask: at first a static admin token, or nobody but this machine."""

import hmac
import ipaddress
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from inference_store.store.errors import Unauthorized
from inference_store.store.settings import ApiSettings

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="token",
    description="INFERENCE_STORE_API_TOKEN; not needed where the api has none.",
)


class OpenToAll(ValueError):
    """The api would listen to other machines without access control."""


def refuse_open_address(settings: ApiSettings) -> None:
    """Raise OpenToAll where another address than loopback is served without a token."""
    allowed = settings.auth == "off" or is_guarded(settings)
    if not allowed and not is_loopback(settings.api_host):
        raise OpenToAll(
            f"INFERENCE_STORE_API_HOST={settings.api_host} is open to other machines: set"
            " INFERENCE_STORE_API_TOKEN, or INFERENCE_STORE_AUTH=off to serve it without"
            " access control on purpose."
        )


def is_guarded(settings: ApiSettings) -> bool:
    """Whether requests must bear the token."""
    return settings.auth == "on" and _token(settings) is not None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(
    request: Request,
    sent: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> None:
    """Raise Unauthorized unless the request bears the token, where there is one."""
    settings: ApiSettings = request.app.state.settings
    token = _token(settings)
    if not is_guarded(settings) or token is None:
        return
    given = "" if sent is None else sent.credentials
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        raise Unauthorized(
            "Send `Authorization: Bearer` and the value of INFERENCE_STORE_API_TOKEN."
        )


def _token(settings: ApiSettings) -> str | None:
    """The token; an empty one is none."""
    token = settings.api_token
    return (token.get_secret_value() or None) if token is not None else None
