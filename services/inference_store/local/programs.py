"""The store's own programs, started by name as an operator would: migrate, then the services."""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from .folder import LocalFolder
from .model_server import ModelServer
from .part import Part, RunningPart
from .ports import HOST
from .servers import Servers

PREFIX = "INFERENCE_STORE_"
MIGRATE = "migrate"
SERVICES = ("ingester", "api", "retention", "proxy")
"""In the order they are started, and the reverse one they are stopped: the proxy first, while what
it captured can still go its way."""
BUCKET = "inferences"
TOPIC = "inference-events"
PARTITIONS = 3
_MIGRATE_SECONDS = 120.0
_READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ServicePorts:
    """Where the services listen, all on 127.0.0.1."""

    api: int
    proxy: int
    proxy_grpc: int
    admin: Mapping[str, int]
    """Each service's port of health and metrics."""


def settings(servers: Servers, model_server: ModelServer, ports: ServicePorts) -> dict[str, str]:
    """The services' settings for these servers, name (without prefix) to value."""
    return {
        "POSTGRES_DSN": servers.postgres.dsn,
        "KAFKA_BOOTSTRAP_SERVERS": servers.kafka.bootstrap_servers,
        "KAFKA_TOPIC": TOPIC,
        "S3_ENDPOINT": servers.s3.endpoint,
        "S3_ACCESS_KEY": servers.s3.access_key,
        "S3_SECRET_KEY": servers.s3.secret_key,
        "S3_BUCKET": BUCKET,
        "API_HOST": HOST,
        # On purpose: it serves this machine alone, and what it has is made for show.
        "AUTH": "off",
        "API_PORT": str(ports.api),
        "PROXY_HOST": HOST,
        "PROXY_PORT": str(ports.proxy),
        "PROXY_GRPC_PORT": str(ports.proxy_grpc),
        # Less than a part has until it is killed.
        "PROXY_GRACE_SECONDS": "10",
        "PROXY_UPSTREAM": model_server.rest,
        "PROXY_UPSTREAM_GRPC": model_server.grpc,
        **{f"{name.upper()}_ADMIN_PORT": str(port) for name, port in ports.admin.items()},
    }


def environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """Our environment with these settings, and none of the caller's: a DSN of a real database
    that happens to be set must not reach the demo's retention."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return others | {PREFIX + name: value for name, value in chosen.items()}


def migrate(folder: LocalFolder, chosen: Mapping[str, str]) -> None:
    """Bring the tables to this version. Raises LocalStackError."""
    RunningPart(_part(MIGRATE, folder, chosen), folder).wait_done(_MIGRATE_SECONDS)


def start(name: str, folder: LocalFolder, chosen: Mapping[str, str]) -> RunningPart:
    """Start one service; it is not ready yet. Must be called by the main thread."""
    return RunningPart(_part(name, folder, chosen), folder)


def wait_ready(running: RunningPart, admin_port: int) -> None:
    """Wait until the service calls itself ready. Raises LocalStackError."""
    running.wait_ready(lambda: _problem(admin_port), _READY_SECONDS)


def _part(name: str, folder: LocalFolder, chosen: Mapping[str, str]) -> Part:
    return Part(
        name=name,
        command=(sys.executable, "-m", "inference_store.cli.main", name),
        environment=environment(chosen),
        # Not the caller's folder: a `.env` there is meant for another store.
        current_folder=folder.run,
    )


def _problem(admin_port: int) -> str | None:
    """What the service says keeps it from being ready; None when nothing does."""
    try:
        urllib.request.urlopen(f"http://{HOST}:{admin_port}/health/ready", timeout=5).close()
    except urllib.error.HTTPError as error:
        with error:
            return _reasons(error.read())
    except OSError as error:
        return str(error)
    return None


def _reasons(body: bytes) -> str:
    try:
        return json.dumps(json.loads(body))
    except ValueError:
        return body.decode("utf-8", errors="replace")
