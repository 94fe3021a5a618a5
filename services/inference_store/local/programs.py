"""The store's own programs, started by name as an operator would: migrate, then the services."""

import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from inference_store.local.folder import HOST, LocalFolder

from .part import READY_SECONDS, Part, RunningPart, find_problem
from .servers import Servers

PREFIX = "INFERENCE_STORE_"
MIGRATE = "migrate"
SERVICES = ("ingester", "api", "retention", "proxy")
"""The services in the order they are started; they are stopped in reverse: the proxy first, while
its captures can still be published and indexed."""
BUCKET = "inferences"
TOPIC = "inference-events"
PARTITIONS = 3
_MIGRATE_SECONDS = 300.0
_REBUILD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ServicePorts:
    """The ports of the services, all on 127.0.0.1."""

    api: int
    proxy: int
    proxy_grpc: int
    admin: Mapping[str, int]
    """Each service's port of health and metrics."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A started server."""

    running: RunningPart
    rest: str
    """`http://127.0.0.1:<port>`."""
    grpc: str
    """`127.0.0.1:<port>`."""

    def wait_ready(self) -> None:
        """Wait until its models are loaded. Raises LocalStackError."""
        url = f"{self.rest}/v2/health/ready"
        self.running.wait_ready(lambda: find_problem(url), READY_SECONDS)


def settings(
    servers: Servers, model_server: ModelServer, ports: ServicePorts, folder: LocalFolder
) -> dict[str, str]:
    """Return the services' settings for these servers, name (without prefix) to value."""
    return {
        "POSTGRES_DSN": servers.postgres.dsn,
        "KAFKA_BOOTSTRAP_SERVERS": servers.kafka.bootstrap_servers,
        "KAFKA_TOPIC": TOPIC,
        "S3_ENDPOINT": servers.s3.endpoint,
        "S3_ACCESS_KEY": servers.s3.access_key,
        "S3_SECRET_KEY": servers.s3.secret_key,
        "S3_BUCKET": BUCKET,
        "API_HOST": HOST,
        # On purpose: it serves only this machine, and its data are a demonstration.
        "AUTH": "off",
        "API_PORT": str(ports.api),
        "PROXY_HOST": HOST,
        "PROXY_PORT": str(ports.proxy),
        "PROXY_GRPC_PORT": str(ports.proxy_grpc),
        "PROXY_SPOOL": "all",
        "PROXY_SPOOL_DIRECTORY": str(folder.spool),
        # Less than a part has until it is killed.
        "PROXY_GRACE_SECONDS": "10",
        "PROXY_UPSTREAM": model_server.rest,
        "PROXY_UPSTREAM_GRPC": model_server.grpc,
        "PROXY_PROTOCOLS": "v2,v2-grpc,openai",
        # A model's registration divides its batches; this api asks for no key.
        "PROXY_REGISTRY_URL": f"http://{HOST}:{ports.api}",
        "PROXY_REGISTRY_KEY": "unused",
        "PROXY_REGISTRY_FILE": str(folder.path / "registrations.json"),
        "PROXY_REPORT_SECONDS": "2",
        **{f"{name.upper()}_ADMIN_PORT": str(port) for name, port in ports.admin.items()},
    }


def environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with these settings, and none of the caller's: the DSN of a real
    database that happens to be set must not reach the demo's retention."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return others | {PREFIX + name: value for name, value in chosen.items()}


def migrate(folder: LocalFolder, chosen: Mapping[str, str]) -> None:
    """Bring the tables to this version. Raises LocalStackError."""
    # It would make the proxy's key, which this api does not ask for.
    keyless = {name: value for name, value in chosen.items() if name != "PROXY_REGISTRY_KEY"}
    RunningPart(_part(MIGRATE, folder, keyless), folder).wait_done(_MIGRATE_SECONDS)


def rebuild(folder: LocalFolder, chosen: Mapping[str, str]) -> None:
    """Index what the bucket has and the index lacks. Raises LocalStackError."""
    part = _part("reconcile", folder, chosen, "--repair", "rebuild")
    # 1: it found a difference, which is what it is for.
    RunningPart(part, folder).wait_done(_REBUILD_SECONDS, codes=(0, 1))


def start(name: str, folder: LocalFolder, chosen: Mapping[str, str]) -> RunningPart:
    """Start a service; it is not ready yet. Must be called by the main thread."""
    return RunningPart(_part(name, folder, chosen), folder)


def wait_ready(running: RunningPart, admin_port: int) -> None:
    """Wait until the service reports that it is ready. Raises LocalStackError."""
    url = f"http://{HOST}:{admin_port}/health/ready"
    running.wait_ready(lambda: find_problem(url), READY_SECONDS)


def count_awaited(api: str, since: datetime) -> int | None:
    """Return how many captures of the producers that started since then are not in the index yet,
    and how many events of others; None if no producer has ended. Raises OSError."""
    with urllib.request.urlopen(f"{api}/v1/accounting", timeout=5) as answer:
        books = json.load(answer)
    counts = []
    for producer in books["producers"]:
        first = next(iter(producer["reports"]), None)
        if first and first["final"] and datetime.fromisoformat(first["booted_at"]) >= since:
            # what is in the spool waits for the next start
            gone = first["spooled"] + sum(first["dropped"].values())
            counts.append(max(0, producer["missing"] - gone))
    unread = sum(partition["waiting"] or 0 for partition in books["partitions"])
    return sum(counts) + unread if counts else None


def _part(name: str, folder: LocalFolder, chosen: Mapping[str, str], *arguments: str) -> Part:
    return Part(
        name=name,
        command=(sys.executable, "-m", "inference_store.cli.main", name, *arguments),
        environment=environment(chosen),
        # Not the caller's folder: a `.env` there is meant for another store.
        current_folder=folder.run,
    )


MODEL_SERVER = "model-server"
_MODEL_SERVER_MODULE = "inference_store.local.demo.model_server"


def start_model_server(folder: LocalFolder, rest_port: int, grpc_port: int) -> ModelServer:
    """Start the server; it is not ready yet. Must be called by the main thread."""
    part = Part(
        name=MODEL_SERVER,
        command=(sys.executable, "-m", _MODEL_SERVER_MODULE, str(rest_port), str(grpc_port)),
        environment=dict(os.environ),
        current_folder=folder.run,
    )
    running = RunningPart(part, folder)
    return ModelServer(running, f"http://{HOST}:{rest_port}", f"{HOST}:{grpc_port}")
