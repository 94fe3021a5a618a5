"""`inference-store smoke`: is the whole line at work? Safe in production."""

import argparse
import ssl
import sys

from aiokafka.errors import KafkaError

from inference_store.smoke.rest import Refused, Rest
from inference_store.smoke.settings import SmokeSettings
from inference_store.smoke.story import Failed, tell
from inference_store.store.errors import BlobsAway

from .start import started


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which api, and how long."""
    parser.add_argument(
        "--api", default="http://127.0.0.1:8080", help="address of the api (default: %(default)s)"
    )
    parser.add_argument("--ca", help="file with the certificates that the api's is checked by")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="longest wait for the ingester (default: 60)"
    )


def run(arguments: argparse.Namespace) -> int:
    """0 when every step came to its end; else says which did not."""
    settings = started(SmokeSettings, "smoke")
    token = settings.api_token.get_secret_value() if settings.api_token else None
    tls = ssl.create_default_context(cafile=arguments.ca) if arguments.ca else None
    api = Rest(arguments.api.rstrip("/"), token, tls)
    try:
        tell(settings, api, seconds=arguments.seconds, say=print)
    except (Failed, Refused, BlobsAway, KafkaError, OSError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    print("The line works, from the event to the answer.")
    return 0
