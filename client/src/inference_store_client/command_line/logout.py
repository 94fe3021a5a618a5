"""`istore logout`: forgets the sign-in to the store, and tells the issuer so."""

import argparse

import httpx

from inference_store_client.http_clients import open_http
from inference_store_client.settings import find_origin, get_cache
from inference_store_client.sign_in import end

from .arguments import add_url
from .ending import FAILED, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument."""
    add_url(parser)


def run(options: argparse.Namespace) -> int:
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
