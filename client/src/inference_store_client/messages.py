"""Requests and responses of httpx, which both transports share."""

import socket
import ssl
from typing import Final
from urllib.request import getproxies, proxy_bypass

import httpx

from .commands import Failure, Response
from .errors import ConnectionFailed, SettingsError, StoreError
from .requests import Request
from .settings import ClientSettings

TIMEOUT: Final = httpx.Timeout(120.0, connect=10.0)
"""Longer than a query may take."""
_FINAL: Final = (socket.gaierror, ssl.SSLCertVerificationError)
"""Causes that do not pass by themselves: no such host, and a certificate that is not trusted."""

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
_NO_ANSWER: Final = "Server disconnected without sending a response"
_UNREACHED: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)


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
    try:
        return http.build_request(request.method, url, content=request.body, headers=headers)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise SettingsError(f"{url!r} is no address: {error}") from error


def read_head(response: httpx.Response) -> Response:
    """Return a response without its content."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    url = str(response.url.copy_with(query=None, fragment=None))  # a link may have a signature
    return Response(response.status_code, headers, url=url)


def make_failure(
    error: httpx.RequestError, settings: ClientSettings, *, is_known: bool = True
) -> Failure:
    """Return a failure of the connection; `error` is its cause. `is_known` False: the store has
    never answered, so that a refused connection may be a wrong address."""
    name = type(error).__name__
    hint = _find_hint(error, settings.origin.url)
    failure = ConnectionFailed(f"{settings.origin.url}: {str(error) or name} ({name}){hint}")
    failure.__cause__ = error
    is_tried = is_known or settings.retries.at_first_contact
    is_transient = is_tried or not isinstance(error, httpx.ConnectError)
    return Failure(failure, is_transient=is_transient and not _has_final_cause(error))


def _find_hint(error: httpx.RequestError, url: str) -> str:
    """Return what else may be wrong than the error says."""
    if any(reason in str(error) for reason in _NO_TLS):
        return ": no TLS is spoken there; is it http://?"
    proxies, target = getproxies(), httpx.URL(url)
    if target.scheme == "http" and _NO_ANSWER in str(error):
        return ": perhaps TLS is spoken there; is it https://?"
    is_set = target.scheme in proxies or "all" in proxies
    if not isinstance(error, _UNREACHED):
        return ""
    if is_set and not proxy_bypass(target.host):
        return ": the environment names a proxy (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY)"
    return ": is the store running, and is this its address? Give another as the url, or as --url"


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
