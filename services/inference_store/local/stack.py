"""Everything together: the three servers, the tables, the three services."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from . import programs
from .folder import LocalFolder
from .part import RunningPart
from .ports import HOST, free_ports
from .servers import Servers, end_what_is_left, running_servers


@dataclass(frozen=True, slots=True)
class Stack:
    """A store that runs on this machine."""

    servers: Servers
    services: Mapping[str, RunningPart]
    api: str
    """The REST API, `http://127.0.0.1:<port>`."""
    admin: Mapping[str, str]
    """Each service's admin port (health, metrics)."""

    @property
    def parts(self) -> tuple[RunningPart, ...]:
        """Every process, in the order they were started."""
        servers = self.servers
        inner = (servers.postgres.running, servers.s3.running, servers.kafka.running)
        return (*inner, *self.services.values())

    def check(self) -> None:
        """Raises PartEnded when one of the processes is no more."""
        for part in self.parts:
            part.check()


@contextmanager
def running_stack(folder: LocalFolder, api_port: int) -> Iterator[Stack]:
    """The whole store for as long as the block runs, stopped in the reverse order after it.

    Must be called by the main thread, with the folder made and taken. Raises LocalStackError.
    """
    end_what_is_left(folder, (*reversed(programs.SERVICES), programs.MIGRATE))
    with ExitStack() as stack:
        servers = stack.enter_context(
            running_servers(
                folder,
                buckets=(programs.BUCKET,),
                topic=programs.TOPIC,
                partitions=programs.PARTITIONS,
            )
        )
        ports = dict(zip(programs.SERVICES, free_ports(len(programs.SERVICES)), strict=True))
        chosen = programs.settings(servers, api_port, ports)
        programs.migrate(folder, chosen)
        services = {}
        for name in programs.SERVICES:  # all started before any is waited for
            services[name] = programs.start(name, folder, chosen)
            stack.callback(services[name].stop)
        for name, running in services.items():
            programs.wait_ready(running, ports[name])
        yield Stack(
            servers,
            MappingProxyType(services),
            f"http://{HOST}:{api_port}",
            MappingProxyType({name: f"http://{HOST}:{port}" for name, port in ports.items()}),
        )
