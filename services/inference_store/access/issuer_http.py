"""Asks an OIDC issuer: bounded answers of one JSON object, no redirects."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

_MOST_BYTES = 1024 * 1024


class IssuerUnavailable(Exception):
    """It does not answer, or not with what it should; the text says what."""


async def discover(session: aiohttp.ClientSession, issuer: str) -> Mapping[str, Any]:
    """Return what an issuer says of itself. Raises IssuerUnavailable."""
    url = _get_discovery_url(issuer)
    _, document = await ask(session, "GET", url)
    if document.get("issuer") != issuer:
        raise IssuerUnavailable(f"{url} names another issuer than INFERENCE_STORE_OIDC_ISSUER")
    return document


def read_endpoint(document: Mapping[str, Any], issuer: str, name: str) -> str:
    """Return the URL of an endpoint, which is asked over no weaker connection than the discovery.
    Raises IssuerUnavailable."""
    url = document.get(name)
    discovery = _get_discovery_url(issuer)
    if not isinstance(url, str) or urlsplit(url).scheme not in (
        "https",
        urlsplit(discovery).scheme,
    ):
        raise IssuerUnavailable(f"{discovery} names no {name}")
    return url


async def ask(
    session: aiohttp.ClientSession, method: str, url: str, **more: Any
) -> tuple[int, Mapping[str, Any]]:
    """Return the status, 200 or 4xx to a POST, and a JSON object. Raises IssuerUnavailable."""
    try:
        async with session.request(method, url, allow_redirects=False, **more) as answer:
            status = answer.status
            if status != 200 and not (method == "POST" and 400 <= status < 500):
                raise IssuerUnavailable(f"{url} answered {status}")
            body = await _read(answer)
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise IssuerUnavailable(f"{url}: {exc or type(exc).__name__}"[:300]) from None
    if len(body) > _MOST_BYTES:
        raise IssuerUnavailable(f"{url} answered more than {_MOST_BYTES} bytes")
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise IssuerUnavailable(f"{url} answered no JSON object")
    return status, document


async def _read(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body, or a little more than the most that is allowed."""
    body = await answer.content.read(_MOST_BYTES + 1)
    while len(body) <= _MOST_BYTES and (more := await answer.content.read(_MOST_BYTES)):
        body += more
    return body


def _get_discovery_url(issuer: str) -> str:
    return f"{issuer.rstrip('/')}/.well-known/openid-configuration"
