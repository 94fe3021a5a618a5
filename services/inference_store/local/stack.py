"""Everything together: the three servers, the tables, a model server, and the services.

The broker keeps everything in memory. So a stack stops the proxy first and waits until the index
has what it captured; after a stop without that, the next start indexes what the bucket has.
"""

import signal
import time
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

from . import programs
from .part import RunningPart
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


_POLL_SECONDS = 0.2
_STUCK_SECONDS = 60.0
"""So long an ingester may take for the next event before the wait for it ends."""
_MODELS_GRPC = f"{programs.MODEL_SERVER}-grpc"
_PARTS = (
    *(API, PROXY, "proxy-grpc", *(f"{name}-admin" for name in programs.SERVICES)),
    *(programs.MODEL_SERVER, _MODELS_GRPC, postgres.NAME, servers.S3_NAME),
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
        return programs.url(self.ports[part])

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
    end_what_is_left(
        folder, (*reversed(programs.SERVICES), programs.MIGRATE, programs.MODEL_SERVER)
    )
    # A kill after this and before the first capture costs one look through the bucket.
    is_complete = folder.drained.exists() or not any(folder.s3.glob("*/*"))
    folder.drained.unlink(missing_ok=True)
    started_at = datetime.now(UTC)
    with ExitStack() as stack:
        ports, sentences = choose_ports(_PARTS, requested_ports)
        for sentence in sentences:
            say(sentence)
        # First: loading its models takes longest, and nothing waits for it before the services.
        models = programs.start_model_server(
            folder, ports[programs.MODEL_SERVER], ports[_MODELS_GRPC]
        )
        stack.callback(models.stop)
        started = stack.enter_context(
            running_servers(
                folder,
                ports=ports,
                buckets=(programs.BUCKET,),
                topic=programs.TOPIC,
                partitions=programs.PARTITIONS,
            )
        )
        chosen = programs.settings(started, ports, folder)
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
        programs.wait_ready(models, ports[programs.MODEL_SERVER], "/v2/health/ready")
        for name, running in services.items():
            programs.wait_ready(running, ports[f"{name}-admin"])
        built = Stack(started, {programs.MODEL_SERVER: models, **services}, ports)
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
        while (now_awaited := programs.count_awaited(stack.url(API), started_at)) != 0:
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
