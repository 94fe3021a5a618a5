"""Everything together: the three servers, the tables, a model server, and the services.

Each program is started by its name, as an operator would. The broker keeps everything in memory: so
a stack stops the proxy first and waits until the index has what it captured; after a stop without
that, the next start indexes what the bucket has.
"""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from inference_store.inference.nearest import counted
from inference_store.local import postgres, servers
from inference_store.local.folder import (
    HOST,
    LocalFolder,
    LocalStackError,
    free_from,
    is_free,
)

from .part import READY_SECONDS, Part, RunningPart, end_leftovers, find_problem
from .servers import BUCKET, TOPIC, TRUTH_TOPIC, Servers, running_servers

PREFIX = "INFERENCE_STORE_"
MODEL_SERVER = "model-server"
_COMMAND_LINE = "inference_store.cli.main"
_MODEL_SERVER_MODULE = "inference_store.local.demo.model_server"
SERVICES = ("ingester", "api", "retention", "proxy")
"""The services in the order they are started; they are stopped in reverse: the proxy first, while
its captures can still be published and indexed."""
_MIGRATE_SECONDS = 300.0
_REBUILD_SECONDS = 3600.0
API, PROXY = "api", "proxy"
DEFAULT_PORTS: Mapping[str, int] = {API: 8080, PROXY: 8090}
"""The ports that README.md and docs/ name, by part."""
_TITLES: Mapping[str, str] = {API: "REST API", PROXY: "proxy"}


class PortTaken(LocalStackError):
    """Another program listens on a requested port."""

    def __init__(self, part: str, port: int) -> None:
        super().__init__(
            f"Port {port} of {HOST}, asked for the {_TITLES.get(part, part)}, is taken by another"
            " program: stop that program, or ask for another port."
        )


def choose_ports(
    parts: Sequence[str], requested: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Return a port for each part, and sentences for the user about the choice.

    `requested`: by part, the ports that must be used. Raises PortTaken.
    """
    for part, port in requested.items():
        if not is_free(port):
            raise PortTaken(part, port)
    ports = dict(requested)
    for part in parts:
        if part not in ports:
            used = frozenset(ports.values())
            ports[part] = free_from(DEFAULT_PORTS.get(part), without=used)
    return ports, [
        ("" if part in requested else f"Port {usual} is taken by another program. ")
        + f"The {_TITLES[part]} listens on {ports[part]}: write {ports[part]} where README.md and"
        f" docs/ write {usual}."
        for part, usual in DEFAULT_PORTS.items()
        if ports.get(part, usual) != usual
    ]


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


def _choose_settings(
    servers: Servers, ports: Mapping[str, int], folder: LocalFolder
) -> dict[str, str]:
    """Return the services' settings for these servers, name (without prefix) to value. `ports`: of
    each part, of its gRPC (`proxy-grpc`) and of its health and metrics (`proxy-admin`)."""
    return {
        "POSTGRES_DSN": servers.postgres.dsn,
        "KAFKA_BOOTSTRAP_SERVERS": servers.kafka.bootstrap_servers,
        "KAFKA_TOPIC": TOPIC,
        "KAFKA_TRUTH_TOPIC": TRUTH_TOPIC,
        "S3_ENDPOINT": servers.s3.endpoint,
        "S3_ACCESS_KEY": servers.s3.access_key,
        "S3_SECRET_KEY": servers.s3.secret_key,
        "S3_BUCKET": BUCKET,
        "API_HOST": HOST,
        # On purpose: it serves only this machine, and its data are a demonstration.
        "AUTH": "off",
        "API_PORT": str(ports["api"]),
        "PROXY_HOST": HOST,
        "PROXY_PORT": str(ports["proxy"]),
        "PROXY_GRPC_PORT": str(ports["proxy-grpc"]),
        "PROXY_SPOOL": "all",
        "PROXY_SPOOL_DIRECTORY": str(folder.spool),
        # Less than a part has until it is killed.
        "PROXY_GRACE_SECONDS": "10",
        "PROXY_UPSTREAM": _url(ports[MODEL_SERVER]),
        "PROXY_UPSTREAM_GRPC": f"{HOST}:{ports[f'{MODEL_SERVER}-grpc']}",
        "PROXY_PROTOCOLS": "v2,v2-grpc,openai",
        # A model's registration divides its batches; this api asks for no key.
        "PROXY_REGISTRY_URL": _url(ports["api"]),
        "PROXY_REGISTRY_KEY": "unused",
        "PROXY_REGISTRY_FILE": str(folder.path / "registrations.json"),
        "PROXY_REPORT_SECONDS": "2",
        "REPLAY_PROXY": _url(ports["proxy"]),
        "REPLAY_PROXY_GRPC_PORT": str(ports["proxy-grpc"]),
        **{f"{name.upper()}_ADMIN_PORT": str(ports[f"{name}-admin"]) for name in SERVICES},
    }


def environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with these settings, and none of the caller's: the DSN of a real
    database that happens to be set must not reach the demo's retention."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return others | {PREFIX + name: value for name, value in chosen.items()}


def _start(
    folder: LocalFolder, name: str, command: Sequence[str], variables: Mapping[str, str]
) -> RunningPart:
    """Start a program; it is not ready yet. Must be called by the main thread."""
    # Not the caller's folder: a `.env` there is meant for another store.
    part = Part(name, (sys.executable, "-m", *command), variables, current_folder=folder.run)
    return RunningPart(part, folder)


def _start_service(
    folder: LocalFolder, chosen: Mapping[str, str], name: str, *arguments: str
) -> RunningPart:
    return _start(folder, name, (_COMMAND_LINE, name, *arguments), environment(chosen))


def _migrate(folder: LocalFolder, chosen: Mapping[str, str]) -> None:
    # It would make the proxy's key, which this api does not ask for.
    keyless = {name: value for name, value in chosen.items() if name != "PROXY_REGISTRY_KEY"}
    _start_service(folder, keyless, "migrate").wait_done(_MIGRATE_SECONDS)


def _rebuild(folder: LocalFolder, chosen: Mapping[str, str]) -> None:
    """Index what the bucket has and the index lacks."""
    rebuilding = _start_service(folder, chosen, "reconcile", "--repair", "rebuild")
    # 1: it found a difference, which is what it is for.
    rebuilding.wait_done(_REBUILD_SECONDS, codes=(0, 1))


def _wait_ready(running: RunningPart, port: int, path: str = "/health/ready") -> None:
    """Wait until the program reports that it is ready. Raises LocalStackError."""
    running.wait_ready(lambda: find_problem(f"{_url(port)}{path}"), READY_SECONDS)


def _count_awaited(api: str, since: datetime) -> int | None:
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


_POLL_SECONDS = 0.2
_STUCK_SECONDS = 60.0
"""So long an ingester may take for the next event before the wait for it ends."""
_MODELS_GRPC = f"{MODEL_SERVER}-grpc"
_PARTS = (
    *(API, PROXY, "proxy-grpc", *(f"{name}-admin" for name in SERVICES)),
    *(MODEL_SERVER, _MODELS_GRPC, postgres.NAME, servers.S3_NAME),
)
"""All parts that listen, except Kafka's test broker: it takes any port."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A store that runs on this machine."""

    servers: Servers
    running: Mapping[str, RunningPart]
    """The model server and the services."""
    ports: Mapping[str, int]

    def url(self, part: str) -> str:
        """Return where a part listens: `http://127.0.0.1:<port>`."""
        return _url(self.ports[part])

    def grpc(self, part: str) -> str:
        """Return where it listens for gRPC: `127.0.0.1:<port>`."""
        return f"{HOST}:{self.ports[f'{part}-grpc']}"

    def check(self, *, without: str = "") -> None:
        """Raise PartEnded if one of the processes has ended, except the one `without`."""
        for part in (*self.servers.parts, *self.running.values()):
            if part.part.name != without:
                part.check()


@contextmanager
def running_stack(
    folder: LocalFolder, requested_ports: Mapping[str, int], say: Callable[[str], None]
) -> Iterator[Stack]:
    """Run the whole store as long as the block runs, and stop it in reverse order.

    `requested_ports`: by part, those that must be used; `say` receives sentences about the others,
    and about what is indexed at the start and the end. Must be called by the main thread, with the
    folder made and locked. Raises LocalStackError.
    """
    end_leftovers(folder)
    # A kill after this and before the first capture costs one look through the bucket.
    is_complete = folder.drained.exists() or not any(folder.s3.glob("*/*"))
    folder.drained.unlink(missing_ok=True)
    started_at = datetime.now(UTC)
    with ExitStack() as stack:
        ports, sentences = choose_ports(_PARTS, requested_ports)
        for sentence in sentences:
            say(sentence)
        # First: loading its models takes longest, and nothing waits for it before the services.
        arguments = str(ports[MODEL_SERVER]), str(ports[_MODELS_GRPC])
        models = _start(folder, MODEL_SERVER, (_MODEL_SERVER_MODULE, *arguments), os.environ)
        stack.callback(models.stop)
        started = stack.enter_context(running_servers(folder, ports))
        chosen = _choose_settings(started, ports, folder)
        chosen["CERTIFICATE_KEY_FILE"] = str(folder.certificate_key())
        folder.write_settings({PREFIX + name: value for name, value in chosen.items()})
        _migrate(folder, chosen)
        if not is_complete:
            say("The last stack was killed: indexing what only the bucket has.")
            _rebuild(folder, chosen)
        services = {}
        for name in SERVICES:  # all started before any is waited for
            services[name] = _start_service(folder, chosen, name)
            stack.callback(services[name].stop)
        _wait_ready(models, ports[MODEL_SERVER], "/v2/health/ready")
        for name, running in services.items():
            _wait_ready(running, ports[f"{name}-admin"])
        built = Stack(started, {MODEL_SERVER: models, **services}, ports)
        try:
            yield built
        finally:
            services[PROXY].stop()
            if _drain(built, started_at, say):
                folder.drained.touch()


def _drain(stack: Stack, started_at: datetime, say: Callable[[str], None]) -> bool:
    """Wait until the index has all that the proxy captured, and return whether it has.

    A second Ctrl-C gives up.
    """
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    awaited, deadline = None, time.monotonic() + _STUCK_SECONDS
    try:
        while (now_awaited := _count_awaited(stack.url(API), started_at)) != 0:
            stack.check(without=PROXY)
            if now_awaited != awaited:
                awaited, deadline = now_awaited, time.monotonic() + _STUCK_SECONDS
                say(f"Indexing what was captured: {_describe(awaited)} to go; Ctrl-C gives up.")
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        else:
            return True
    except (KeyboardInterrupt, LocalStackError, OSError) as error:
        if isinstance(error, LocalStackError):
            say(str(error))
    finally:
        signal.signal(signal.SIGINT, ignored)
    say(f"Gave up with {_describe(awaited)} to go: the next start indexes them from the bucket.")
    return False


def _describe(awaited: int | None) -> str:
    return "an unknown number" if awaited is None else counted(awaited, "capture")
