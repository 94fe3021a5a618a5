"""`make bench-proxy-servers`: the proxy's own HTTP server beside others, in turn in one run.

Three parts: CPU of each server alone, CPU of the real proxy with its REST port on each, and the
cases of the wire that each holds. What is measured goes into results.json, from which
`python -m benchmarks.proxy_servers.report` writes docs/reference/benchmarks/proxy-servers.md.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.servers.fixtures import unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.ports import free_port
from tests.servers.process import LeashedProcess

from benchmarks.machine import machine
from benchmarks.proxy.cores import choose_cores, pin
from benchmarks.proxy.measurement import Figures, Pids, measure
from benchmarks.proxy.nginx import until_open
from benchmarks.proxy.proxy_process import Proxy
from benchmarks.proxy.workloads import Ports

from .carried import CarriedProxy
from .cases import FILES, run_cases
from .environment import install_servers, list_versions
from .report import RESULTS
from .servers import SERVERS

WORKLOADS: Final = ("REST JSON 1 kB", "REST binary tensor 147 kB")
_TOPICS: Final = ("inference-events", "inference-reports")

Lines = dict[str, dict[str, list[Figures]]]
"""By workload and server, the figures of each round."""
Running = dict[str, tuple[int, Pids]]
"""By server, its port and what is measured of it."""
Start = Callable[[Path, ExitStack, Sequence[str]], Running]


def main() -> None:
    """Measure the parts, and keep what is known of the others."""
    parts: dict[str, Callable[[argparse.Namespace], Any]] = {
        "alone": partial(_measure_rounds, _start_alone),
        "proxy": partial(_measure_rounds, _start_proxies),
        "cases": _run_cases,
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of each line; medians are reported")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--parts", nargs="+", default=list(parts), choices=list(parts))
    parser.add_argument("--servers", nargs="+", default=list(SERVERS), choices=list(SERVERS))
    parser.add_argument("--tests", nargs="+", default=FILES, help="the tests of the cases")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write to")
    arguments = parser.parse_args()
    install_servers()
    results = json.loads(arguments.results.read_text()) if arguments.results.exists() else {}
    for part in arguments.parts:
        results |= {"machine": machine(), "versions": list_versions()}
        results[part] = parts[part](arguments)
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {arguments.results}")


def _run_cases(arguments: argparse.Namespace) -> dict[str, Any]:
    cases: dict[str, Any] = {}
    for server in arguments.servers:
        print(f"cases on {server}", flush=True)
        cases[server] = run_cases(server, arguments.tests)
        reasons = [reason for table in cases[server].values() for reason in table.values()]
        print(f"  {sum(map(bool, reasons))} of {len(reasons)} fail", flush=True)
    return cases


def _start_alone(folder: Path, stack: ExitStack, servers: Sequence[str]) -> Running:
    """Start servers that answer by themselves."""
    running: Running = {}
    for server in servers:
        port = free_port()
        command = [sys.executable, "-m", f"{__package__}.bare", server, str(port)]
        process = LeashedProcess(command, log=folder / f"{server}.log")
        stack.callback(process.kill)
        until_open(process, port, server)
        running[server] = port, process.pids
    return running


def _start_proxies(folder: Path, stack: ExitStack, servers: Sequence[str]) -> Running:
    """Start real proxies before the model server of `make bench-proxy`; only the process that
    serves is measured, and not the one that captures."""
    cores = choose_cores()
    kafka, s3 = stack.enter_context(KafkaServer()), stack.enter_context(MinioServer())
    for topic in _TOPICS:
        kafka.create_topic(topic, partitions=4)
    bucket = s3.create_bucket(unique())
    for aside in (kafka, s3):
        pin(aside.pids(), cores.servers, idle=True)
    ports = _start_upstream(folder, stack)
    running: Running = {}
    for server in servers:
        proxy = Proxy(
            Path(tempfile.mkdtemp(dir=folder)), upstream=ports, kafka=kafka, s3=s3, bucket=bucket,
            settings={}, start=partial(CarriedProxy, server),
        )  # fmt: skip
        stack.callback(proxy.end)
        pin(proxy.pids(), cores.measured)
        running[server] = proxy.ports.rest, proxy.serving
    return running


def _start_upstream(folder: Path, stack: ExitStack) -> Ports:
    ports = Ports.free()
    command = [sys.executable, "-m", "benchmarks.proxy.upstream", *map(str, ports)]
    upstream = LeashedProcess(command, log=folder / "upstream.log")
    stack.callback(upstream.kill)
    until_open(upstream, ports.rest, "the stub")
    pin(upstream.pids(), choose_cores().load)
    return ports


def _measure_rounds(start: Start, arguments: argparse.Namespace) -> Lines:
    """Start all, and measure each with each workload, in turn."""
    lines: Lines = {name: {server: [] for server in arguments.servers} for name in WORKLOADS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running = start(Path(folder), stack, arguments.servers)
        for _, pids in running.values():
            pin(pids(), choose_cores().measured)
        for number in range(arguments.rounds):
            print(f"round {number + 1}", flush=True)
            for workload in WORKLOADS:
                for server, (port, pids) in running.items():
                    figures = _measure(workload, port, pids, arguments.seconds)
                    lines[workload][server].append(figures)
                    _print_figures(server, workload, figures)
    return lines


def _measure(workload: str, port: int, pids: Pids, seconds: float) -> Figures:
    return measure(workload, port, choose_cores().load, pids, seconds=seconds)


def _print_figures(server: str, workload: str, figures: Mapping[str, Any]) -> None:
    line = f"  {server:20} {workload:28} {figures['cpu']:7.0f} µs  {figures['rate']:8,.0f}/s"
    print(line, flush=True)


if __name__ == "__main__":
    main()
