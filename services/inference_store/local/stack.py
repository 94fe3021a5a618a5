"""Everything together: the three servers, the tables, a model server, and the services."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from . import model_server, programs
from .folder import LocalFolder
from .model_server import ModelServer
from .part import RunningPart
from .ports import HOST, free_ports
from .servers import Servers, end_what_is_left, running_servers


@dataclass(frozen=True, slots=True)
class Stack:
    """A store that runs on this machine."""

    servers: Servers
    model_server: ModelServer
    services: Mapping[str, RunningPart]
    api: str
    """The REST API, `http://127.0.0.1:<port>`."""
    proxy: str
    """The model server as its callers see it: `http://127.0.0.1:<port>`."""
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

    def check(self) -> None:
        """Raises PartEnded when one of the processes is no more."""
        for part in self.parts:
            part.check()


@contextmanager
def running_stack(folder: LocalFolder, api_port: int, proxy_port: int) -> Iterator[Stack]:
    """The whole store for as long as the block runs, stopped in the reverse order after it.

    Must be called by the main thread, with the folder made and taken. Raises LocalStackError.
    """
    end_what_is_left(folder, (*reversed(programs.SERVICES), programs.MIGRATE, model_server.NAME))
    with ExitStack() as stack:
        ports = _ports(api_port, proxy_port)
        # First: loading its models takes longest, and nothing waits for it before the services.
        models = model_server.start_model_server(folder, *free_ports(2))
        stack.callback(models.running.stop)
        servers = stack.enter_context(
            running_servers(
                folder,
                buckets=(programs.BUCKET,),
                topic=programs.TOPIC,
                partitions=programs.PARTITIONS,
            )
        )
        chosen = programs.settings(servers, models, ports)
        chosen["CERTIFICATE_KEY_FILE"] = str(folder.certificate_key())
        programs.migrate(folder, chosen)
        services = {}
        for name in programs.SERVICES:  # all started before any is waited for
            services[name] = programs.start(name, folder, chosen)
            stack.callback(services[name].stop)
        models.wait_ready()
        for name, running in services.items():
            programs.wait_ready(running, ports.admin[name])
        yield _stack(servers, models, services, ports)


def _ports(api: int, proxy: int) -> programs.ServicePorts:
    grpc, *admin = free_ports(1 + len(programs.SERVICES))
    return programs.ServicePorts(api, proxy, grpc, dict(zip(programs.SERVICES, admin, strict=True)))


def _stack(
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
