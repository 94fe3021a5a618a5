"""Asks an OIDC issuer: bounded answers of one JSON object, over TLS, without redirects."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from inference_store_client.errors import ConnectionFailed, SettingsError, UnexpectedAnswer

_MOST_BYTES: Final = 1024 * 1024
_TIMEOUT: Final = httpx.Timeout(10.0)
_MOST_SECONDS: Final = 30.0
"""For a whole answer: a byte now and then is none."""
TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class IssuerAnswer:
    """The status of an answer, and its JSON object."""

    status: int
    members: Mapping[str, Any]

    @property
    def error(self) -> str:
        """The error code of OAuth; empty: there is none."""
        error = self.members.get("error")
        return error[:100] if isinstance(error, str) else ""

    @property
    def reason(self) -> str:
        """The error with what the issuer says of it, for people."""
        text = self.members.get("error_description")
        described = f": {text[:300]}" if isinstance(text, str) else ""
        return f"{self.error or f'status {self.status}'}{described}"


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer, as its discovery describes it. Only loopback may do without TLS."""

    url: str
    http: httpx.Client
    document: Mapping[str, Any]

    def post(self, endpoint: str, form: Mapping[str, str]) -> IssuerAnswer:
        """Send a form to an endpoint. Raises ConnectionFailed, UnexpectedAnswer, SettingsError."""
        url = self.find_endpoint(endpoint)
        if url is None:
            raise SettingsError(f"the issuer {self.url} has no {endpoint}")
        return ask(self.http, "POST", url, form)

    def find_endpoint(self, name: str) -> str | None:
        """Return the URL of an endpoint; None: the issuer has none."""
        url = self.document.get(name)
        return check_url(url, f"the {name} of {self.url}") if isinstance(url, str) else None


def discover(url: str, http: httpx.Client) -> Issuer:
    """Return an issuer as it describes itself. Raises StoreError."""
    check_url(url, "the issuer")
    where = f"{url.rstrip('/')}/.well-known/openid-configuration"
    answer = ask(http, "GET", where)
    if answer.status != 200 or answer.members.get("issuer") != url:
        raise UnexpectedAnswer(f"{where} does not describe the issuer {url}")
    return Issuer(url, http, answer.members)


def check_url(url: str, what: str) -> str:
    """Return a URL whose answers nobody else can give. Raises SettingsError for others."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    is_secure = parts.scheme == "https" and parts.hostname
    is_near = parts.scheme == "http" and _is_loopback(parts.hostname)
    if url.isascii() and url.isprintable() and (is_secure or is_near):
        return url
    raise SettingsError(f"{what} is {url[:300]!r}, and not at https:// (http:// on loopback alone)")


def ask(
    http: httpx.Client, method: str, url: str, form: Mapping[str, str] | None = None
) -> IssuerAnswer:
    """Send one request. Raises ConnectionFailed, UnexpectedAnswer."""
    headers = {"Accept": "application/json"}
    try:
        with http.stream(
            method, url, data=form, headers=headers, timeout=_TIMEOUT, follow_redirects=False
        ) as answer:
            content = _read(answer, url)
    except httpx.HTTPError as error:
        raise ConnectionFailed(f"{url}: {error or type(error).__name__}") from error
    try:
        members = json.loads(content)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        raise UnexpectedAnswer(f"{url} answered {answer.status_code}, and no JSON object")
    return IssuerAnswer(answer.status_code, members)


def _read(answer: httpx.Response, url: str) -> bytes:
    content, ends_at = b"", time.monotonic() + _MOST_SECONDS
    for piece in answer.iter_bytes():
        content += piece
        if time.monotonic() > ends_at:
            raise ConnectionFailed(f"{url} did not answer within {_MOST_SECONDS:g} s")
        if len(content) > _MOST_BYTES:
            raise UnexpectedAnswer(f"{url} answered more than {_MOST_BYTES:,} bytes")
    return content


def _is_loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False
