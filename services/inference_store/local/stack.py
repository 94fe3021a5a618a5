"""Everything together: the three servers, the tables, a model server, and the services.

The broker keeps everything in memory. So a stack stops the proxy first and waits until the index
has what it captured; after a stop without that, the next start indexes what the bucket has.
"""

import json
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from inference_store.inference.nearest import counted
from inference_store.local import postgres, servers
from inference_store.local.folder import (
    HOST,
    LocalFolder,
    LocalStackError,
    free_from,
    free_ports,
    is_free,
)

from . import programs
from .part import RunningPart
from .programs import ModelServer
from .servers import Servers, end_what_is_left, running_servers

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


@dataclass(frozen=True, slots=True)
class ChosenPorts:
    """The port of each part, and sentences for the user about the choice."""

    ports: Mapping[str, int]
    sentences: Sequence[str]

    def __getitem__(self, part: str) -> int:
        return self.ports[part]


def choose_ports(file: Path, parts: Sequence[str], requested: Mapping[str, int]) -> ChosenPorts:
    """Choose a port for each part, and write them to `file` for the next start.

    `requested`: by part, the ports that must be used. Raises PortTaken.
    """
    last, ports = _read_last(file), dict(requested)
    for part, port in requested.items():
        if not is_free(port):
            raise PortTaken(part, port)
    for part in parts:
        if part not in ports:
            ports[part] = _choose_port(part, last.get(part), used=frozenset(ports.values()))
    half = file.with_suffix(".new")
    half.write_text(json.dumps(ports, indent=2))
    half.replace(file)
    return ChosenPorts(ports, list(_describe_choice(ports, last)))


def _choose_port(part: str, last: int | None, used: frozenset[int]) -> int:
    """Return the last start's port, the default one, or a free one; never one of `used`."""
    for port in (last, DEFAULT_PORTS.get(part)):
        if port is not None and port not in used and is_free(port):
            return port
    if part in DEFAULT_PORTS:
        return free_from(DEFAULT_PORTS[part] + 1, without=used)
    return next(port for port in free_ports(len(used) + 1) if port not in used)


def _read_last(file: Path) -> Mapping[str, int]:
    try:
        return {str(part): int(port) for part, port in json.loads(file.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _describe_choice(ports: Mapping[str, int], last: Mapping[str, int]) -> Iterator[str]:
    for part, port in ports.items():
        name, before = _TITLES.get(part, part), last.get(part, DEFAULT_PORTS.get(part, port))
        if port != before and not is_free(before):
            yield f"Port {before} is taken by another program: the {name} listens on {port}."
    for part, wished in DEFAULT_PORTS.items():
        if ports.get(part, wished) != wished:
            yield (
                f"README.md and docs/ write {wished} for the {_TITLES[part]}: in their commands,"
                f" write {ports[part]}."
            )


_POLL_SECONDS = 0.2
_STUCK_SECONDS = 60.0
"""So long an ingester may take for the next event before the wait for it ends."""
_PROXY_GRPC = "proxy-grpc"
_MODELS_GRPC = f"{programs.MODEL_SERVER}-grpc"


def _admin(service: str) -> str:
    return f"{service}-admin"


_PARTS = (
    *(API, PROXY, _PROXY_GRPC, *map(_admin, programs.SERVICES)),
    *(programs.MODEL_SERVER, _MODELS_GRPC, postgres.NAME, servers.S3_NAME),
)
"""All parts that listen, except Kafka's test broker: it takes any port."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A store that runs on this machine."""

    servers: Servers
    model_server: ModelServer
    services: Mapping[str, RunningPart]
    api: str
    """The REST API, `http://127.0.0.1:<port>`."""
    proxy: str
    """The proxy, which callers use as the model server: `http://127.0.0.1:<port>`."""
    proxy_grpc: str
    """The same over gRPC: `127.0.0.1:<port>`."""
    admin: Mapping[str, str]
    """Each service's admin port (health, metrics)."""

    @property
    def parts(self) -> tuple[RunningPart, ...]:
        """Every process."""
        servers = self.servers
        inner = (servers.postgres.running, servers.s3.running, servers.kafka.running)
        return (*inner, self.model_server.running, *self.services.values())

    def check(self, *, without: str = "") -> None:
        """Raise PartEnded if one of the processes has ended, except the one `without`."""
        for part in self.parts:
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
    end_what_is_left(
        folder, (*reversed(programs.SERVICES), programs.MIGRATE, programs.MODEL_SERVER)
    )
    # A kill after this and before the first capture costs one look through the bucket.
    is_complete = folder.drained.exists() or not any(folder.s3.glob("*/*"))
    folder.drained.unlink(missing_ok=True)
    started_at = datetime.now(UTC)
    with ExitStack() as stack:
        chosen_ports = choose_ports(folder.ports, _PARTS, requested_ports)
        for sentence in chosen_ports.sentences:
            say(sentence)
        admin = {name: chosen_ports[_admin(name)] for name in programs.SERVICES}
        ports = programs.ServicePorts(
            chosen_ports[API], chosen_ports[PROXY], chosen_ports[_PROXY_GRPC], admin
        )
        # First: loading its models takes longest, and nothing waits for it before the services.
        models = programs.start_model_server(
            folder, chosen_ports[programs.MODEL_SERVER], chosen_ports[_MODELS_GRPC]
        )
        stack.callback(models.running.stop)
        servers = stack.enter_context(
            running_servers(
                folder,
                ports=chosen_ports.ports,
                buckets=(programs.BUCKET,),
                topic=programs.TOPIC,
                partitions=programs.PARTITIONS,
            )
        )
        chosen = programs.settings(servers, models, ports, folder)
        chosen["CERTIFICATE_KEY_FILE"] = str(folder.certificate_key())
        folder.write_settings({programs.PREFIX + name: value for name, value in chosen.items()})
        programs.migrate(folder, chosen)
        if not is_complete:
            say("The last stack was killed: indexing what only the bucket has.")
            programs.rebuild(folder, chosen)
        services = {}
        for name in programs.SERVICES:  # all started before any is waited for
            services[name] = programs.start(name, folder, chosen)
            stack.callback(services[name].stop)
        models.wait_ready()
        for name, running in services.items():
            programs.wait_ready(running, ports.admin[name])
        built = _build_stack(servers, models, services, ports)
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
        while (now_awaited := programs.count_awaited(stack.api, started_at)) != 0:
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


def _build_stack(
    servers: Servers,
    models: ModelServer,
    services: Mapping[str, RunningPart],
    ports: programs.ServicePorts,
) -> Stack:
    return Stack(
        servers=servers,
        model_server=models,
        services=MappingProxyType(dict(services)),
        api=f"http://{HOST}:{ports.api}",
        proxy=f"http://{HOST}:{ports.proxy}",
        proxy_grpc=f"{HOST}:{ports.proxy_grpc}",
        admin=MappingProxyType(
            {name: f"http://{HOST}:{port}" for name, port in ports.admin.items()}
        ),
    )
