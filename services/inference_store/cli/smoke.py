"""`inference-store smoke`: is the whole line at work? Safe in production."""

import argparse
import ssl
import sys

import orjson
from aiokafka.errors import KafkaError

from inference_store.inference.errors import BlobsAway
from inference_store.operations.smoke.capture import MODEL
from inference_store.operations.smoke.rest import Refused, Rest
from inference_store.operations.smoke.settings import SmokeSettings
from inference_store.operations.smoke.story import Failed, tell
from inference_store.operations.smoke.through import Call, tell_through

from .seconds import seconds
from .start import started

SETTINGS = SmokeSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which api, which proxy, and how long."""
    parser.add_argument(
        "--api", default="http://127.0.0.1:8080", help="address of the api (default: %(default)s)"
    )
    parser.add_argument("--ca", help="file with the certificates that the api's is checked by")
    parser.add_argument("--proxy", help="address of a proxy, through which a call is sent as well")
    parser.add_argument("--proxy-ca", help="file with the certificates of the proxy's")
    parser.add_argument(
        "--proxy-path", default="", help="where to (default: a V2 model that is not there)"
    )
    parser.add_argument("--proxy-request", help="its JSON; where given, it must be answered well")
    parser.add_argument(
        "--proxy-model", default=MODEL, help="what the store calls it (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=60.0, help="longest wait for the ingester (default: 60)"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when every step came to its end; else says which did not."""
    settings = started(SmokeSettings, "smoke")
    token = settings.api_token.get_secret_value() if settings.api_token else None
    api = Rest(arguments.api.rstrip("/"), token, _trusting(arguments.ca))
    try:
        tell(settings, api, seconds=arguments.seconds, say=print)
        if arguments.proxy:
            tell_through(_call(arguments), api, seconds=arguments.seconds, say=print)
    except (Failed, Refused, BlobsAway, KafkaError, OSError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print("The line works, from the event to the answer.")
    return 0


def _call(arguments: argparse.Namespace) -> Call:
    """Raises Failed where the request is no JSON."""
    try:
        request = orjson.loads(arguments.proxy_request) if arguments.proxy_request else None
    except orjson.JSONDecodeError as error:
        raise Failed(f"--proxy-request is no JSON: {error}") from error
    return Call(
        proxy=arguments.proxy,
        path=arguments.proxy_path,
        request=request,
        model=arguments.proxy_model,
        tls=_trusting(arguments.proxy_ca),
    )


def _trusting(file: str | None) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=file) if file else None
