"""Requests and responses of httpx, which both transports share."""

import socket
import ssl
from typing import Final

import httpx

from .commands import Failure, Response
from .errors import ConnectionFailed, StoreError
from .requests import Request
from .settings import ClientSettings

TIMEOUT: Final = httpx.Timeout(120.0, connect=10.0)
"""Longer than a query may take."""
_FINAL: Final = (socket.gaierror, ssl.SSLCertVerificationError)
"""Causes that do not pass by themselves: no such host, and a certificate that is not trusted."""


def build_message(
    http: httpx.Client | httpx.AsyncClient, settings: ClientSettings, request: Request
) -> httpx.Request:
    """Return a request of httpx. The key, and what else the client sends, stay at the origin."""
    url = settings.origin.make_url(request.path)
    if not settings.origin.has(url):
        timeout = {"timeout": http.timeout.as_dict()}
        return httpx.Request(request.method, url, headers={**request.headers}, extensions=timeout)
    key = settings.read_key()
    sent = {} if key is None else {"Authorization": f"Bearer {key}"}
    headers = {**request.headers, **sent}
    return http.build_request(request.method, url, content=request.body, headers=headers)


def read_head(response: httpx.Response) -> Response:
    """Return a response without its content."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Response(response.status_code, headers)


def make_failure(error: httpx.RequestError, settings: ClientSettings) -> Failure:
    """Return a failure of the connection; `error` is its cause."""
    name = type(error).__name__
    failure = ConnectionFailed(f"{settings.origin.url}: {str(error) or name} ({name})")
    failure.__cause__ = error
    return Failure(failure, is_transient=not _has_final_cause(error))


def renew(settings: ClientSettings) -> Failure | None:
    """Renew the sign-in: asks the issuer, and blocks."""
    assert settings.sign_in is not None
    try:
        settings.sign_in.renew()
    except StoreError as error:
        return Failure(error, is_transient=isinstance(error, ConnectionFailed))
    return None


def _has_final_cause(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, _FINAL):
            return True
        error = error.__cause__ or error.__context__
    return False
