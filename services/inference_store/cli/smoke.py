"""`inference-store smoke`: tests the whole pipeline with one inference. Safe in production."""

import argparse
import ssl
import sys
from urllib.parse import urlsplit

import orjson
from aiokafka.errors import KafkaError

from inference_store.inference.errors import ObjectStoreUnavailable
from inference_store.operations.smoke.capture import MODEL
from inference_store.operations.smoke.proxy_call import Call, run_steps_through_proxy
from inference_store.operations.smoke.publish import Failed, run_steps
from inference_store.operations.smoke.rest import Refused, Rest
from inference_store.operations.smoke.settings import SmokeSettings

from .closed_pipe import raise_if_reader_is_gone
from .seconds import parse_seconds
from .start import start_service

SETTINGS = SmokeSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: the api, the proxy, and how long to wait."""
    parser.add_argument(
        "--api",
        help="address of the api (default: INFERENCE_STORE_URL, else where the settings bind it)",
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
        "--seconds",
        type=parse_seconds,
        default=60.0,
        help="longest wait for an answer of Kafka, and then for the ingester (default: 60)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Return 0 if every step succeeded; else say which did not."""
    settings = start_service(SmokeSettings, "smoke")
    token = settings.api_token.get_secret_value() if settings.api_token else None
    try:
        address = _check_address(arguments.api or settings.api_address)
        api = Rest(address, token, _build_ssl_context(arguments.ca))
        run_steps(settings, api, seconds=arguments.seconds, say=print)
        if arguments.proxy:
            run_steps_through_proxy(
                _read_call(arguments), api, seconds=arguments.seconds, say=print
            )
    except (Failed, Refused, ObjectStoreUnavailable, KafkaError, OSError) as error:
        raise_if_reader_is_gone(error)
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print("The line works, from the event to the answer.")
    return 0


def _check_address(address: str) -> str:
    """Return the api's address, without a slash at its end. Raises Failed with the remedy."""
    parts = urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Failed(
            f"{address!r} is no address of an api: name it by --api or by INFERENCE_STORE_URL,"
            " such as http://127.0.0.1:8080"
        )
    return address.rstrip("/")


def _read_call(arguments: argparse.Namespace) -> Call:
    """Return the call. Raises Failed if the request is no JSON."""
    try:
        request = orjson.loads(arguments.proxy_request) if arguments.proxy_request else None
    except orjson.JSONDecodeError as error:
        raise Failed(f"--proxy-request is no JSON: {error}") from error
    return Call(
        proxy=arguments.proxy,
        path=arguments.proxy_path,
        request=request,
        model=arguments.proxy_model,
        tls=_build_ssl_context(arguments.proxy_ca),
    )


def _build_ssl_context(file: str | None) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=file) if file else None
