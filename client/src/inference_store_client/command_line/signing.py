"""`istore login` and `logout`: a sign-in at the issuer of the store, by a code that you enter in a
browser.

What the issuer gives is written to a file that its owner alone may read, and sent to this store.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import httpx

from inference_store_client.errors import SettingsError, UnexpectedAnswer
from inference_store_client.http_clients import open_http
from inference_store_client.reading import request_any
from inference_store_client.requests import make_path, make_request
from inference_store_client.settings import ClientSettings, find_origin, find_settings, get_cache
from inference_store_client.sign_in import (
    DeviceCode,
    Tokens,
    discover,
    end,
    request_code,
    wait_for_tokens,
)
from inference_store_client.sync import BlockingTransport, Store
from inference_store_client.transport import run

from .arguments import add_url
from .ending import FAILED, say
from .main import Command

_MEMBERS: Final = ("issuer", "client_id", "scopes")


def _log_in(options: argparse.Namespace) -> int:
    """Sign in, and ask the store whether it accepts that, before anything is written."""
    settings = find_settings(options.url)
    tokens = _sign_in(_find_device(settings))
    with Store(settings.origin.url, tokens.access_token) as store:
        caller = store.me()
    cache = get_cache()
    with cache.lock():
        cache.put(settings.origin, tokens)
    say(f"Signed in to {settings.origin.url} as {caller.name}.")
    if settings.key is not None:
        say("A key comes first, as long as INFERENCE_STORE_KEY or the config file has one.")
    return 0


def _sign_in(device: Mapping[str, str]) -> Tokens:
    """Return what the issuer gives, once somebody has entered the code. Raises StoreError."""
    with open_http(httpx.Client) as http:
        issuer = discover(device["issuer"], http)
        code = request_code(issuer, device["client_id"], device["scopes"])
        say(_describe(code))
        return wait_for_tokens(issuer, device["client_id"], code)


def _describe(code: DeviceCode) -> str:
    whole = "" if code.whole_url is None else f"\n(or open {code.whole_url})"
    minutes = max(1, round(code.seconds / 60))
    return f"Open {code.url} and enter {code.user_code} within {minutes} min.{whole}"


def _find_device(settings: ClientSettings) -> Mapping[str, str]:
    """Return the issuer of the store, and the client that asks it. Raises SettingsError."""
    transport = BlockingTransport(replace(settings, key=None, sign_in=None))
    request = make_request("GET", make_path("session", "ways"))
    try:
        answer = run(request_any(transport, request))
    finally:
        run(transport.close())
    device = answer.get("device") if isinstance(answer, Mapping) else None
    if device is None:
        raise SettingsError(
            f"nobody signs in to {settings.origin.url} from a command line: use a key, or have the"
            " api set INFERENCE_STORE_OIDC_DEVICE_CLIENT_ID"
        )
    if not all(isinstance(device.get(name), str) for name in _MEMBERS):
        raise UnexpectedAnswer("the store does not say how to sign in")
    return {name: device[name] for name in _MEMBERS}


def _log_out(options: argparse.Namespace) -> int:
    """Forget it here first: then nothing here can use it, whether the issuer is there or not."""
    origin, cache = find_origin(options.url), get_cache()
    with cache.lock():
        tokens = cache.find(origin)
        if tokens is not None:
            cache.remove(origin)
    if tokens is None:
        say(f"Nobody is signed in to {origin.url}.")
        return FAILED
    with open_http(httpx.Client) as http:
        end(tokens, http)
    say(f"Signed out of {origin.url}.")
    return 0


LOGIN: Final = Command(add_url, _log_in)
LOGOUT: Final = Command(add_url, _log_out)
