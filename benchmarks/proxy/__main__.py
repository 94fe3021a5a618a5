"""`make bench-proxy`: direct, through nginx, and through the proxy, in turn in one run.

What is measured goes into benchmarks/proxy/results.json, from which
`python -m benchmarks.proxy.report` makes the section of docs/benchmarks.md.
"""

import argparse
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.servers.fixtures import unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.process import LeashedProcess

from benchmarks.machine import machine

from .measuring import Figures, Pids, measured
from .nginx import Nginx, binary, until_open
from .overload import overloaded
from .placing import place, placing
from .service import Proxy
from .workloads import Ports, Workload, workloads

RESULTS = Path(__file__).with_name("results.json")
STOPPED = "proxy, S3 and Kafka stopped"
_TOPICS = ("inference-events", "inference-reports")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each line; medians are reported")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--minutes", type=float, default=10.0, help="of overload; 0: leave it out")
    parser.add_argument("--only", nargs="+", default=list(workloads()), help="workloads, by name")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of the proxy")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write to")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(workloads()):
        parser.error(f"no such workload: {', '.join(unknown)}; known: {', '.join(workloads())}")
    binary()
    described = machine()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found = _Bench(arguments, Path(folder), stack).run()
    found["machine"] = described
    arguments.results.write_text(json.dumps(found, indent=1) + "\n")
    print(f"written to {arguments.results}")


class _Bench:
    def __init__(self, arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self._arguments, self._folder = arguments, folder
        self._settings = dict(each.split("=", 1) for each in arguments.set)
        self._cores = placing()
        self._kafka = stack.enter_context(KafkaServer())
        self._s3 = stack.enter_context(MinioServer())
        for topic in _TOPICS:
            self._kafka.create_topic(topic, partitions=4)
        self._bucket = self._s3.create_bucket(unique())
        self._aside()
        self._ports = Ports.free()
        self._upstream = self._stub()
        stack.callback(self._upstream.kill)
        self._nginx = Nginx(folder, self._ports)
        stack.callback(self._nginx.process.kill)
        place(self._nginx.process.pids(), self._cores.measured)

    def run(self) -> dict[str, Any]:
        """All lines: `lines[workload][way][saturation or half]`, a list of the rounds' figures."""
        lines: dict[str, Any] = {}
        for number in range(self._arguments.rounds):
            for name in self._arguments.only:
                print(f"round {number + 1}, {name}", flush=True)
                self._round(workloads()[name], lines.setdefault(name, defaultdict(_line)))
        found = {
            "seconds": self._arguments.seconds,
            "settings": self._settings,
            "lines": lines,
        }
        if self._arguments.minutes:
            found["overload"] = self._overload()
        return found

    def _round(self, work: Workload, lines: Mapping[str, dict[str, list[Figures]]]) -> None:
        """All ways at saturation, then all at half of what the proxy took."""
        full = self._in_turn(work, lines, "saturation")
        half = {"rate": full["rate"] / 2}
        self._in_turn(work, lines, "half", **half)
        with self._servers_stopped():
            # one proxy each, one after the other: at half load the budget fills as it does, and
            # nobody else has the core
            for what, options in (("saturation", {}), ("half", half)):
                with self._proxy() as proxy:
                    port = proxy.ports.of(work)
                    found = self._measured(STOPPED, work, port, proxy.pids, **options)
                    lines[STOPPED][what].append({**found, "captures": proxy.counted()})

    def _in_turn(
        self, work: Workload, lines: Mapping[str, dict[str, list[Figures]]], what: str,
        **options: float,
    ) -> Figures:  # fmt: skip
        """Direct, nginx, proxy; the figures of the last."""
        with self._proxy() as proxy:
            ways: Mapping[str, tuple[Ports, Pids]] = {
                "direct": (self._ports, list),
                "nginx": (self._nginx.ports, self._nginx.process.pids),
                "proxy": (proxy.ports, proxy.pids),
            }
            for way, (ports, pids) in ways.items():
                found = self._measured(way, work, ports.of(work), pids, **options)
                lines[way][what].append(found)
            lines["proxy"][what][-1] = found = {**found, "captures": proxy.counted()}
        print(f"    {found['captures']}", flush=True)
        return found

    def _overload(self) -> dict[str, Any]:
        print(f"{self._arguments.minutes:g} minutes of overload, S3 stopped", flush=True)
        with self._proxy() as proxy:
            self._s3.stop()
            found = overloaded(proxy, self._cores.load, minutes=self._arguments.minutes)
        print(f"  {found}", flush=True)
        return found

    def _measured(
        self, way: str, work: Workload, port: int, pids: Pids, **options: float
    ) -> Figures:
        options["seconds"] = self._arguments.seconds
        found = measured(work.name, port, self._cores.load, pids, **options)
        print(
            f"  {way:28} {found['rate']:8,.0f}/s  p50 {found['p50']:7.2f} ms "
            f" p99 {found['p99']:7.2f} ms  {found['cpu']:6.0f} µs "
            f" {found['share of a core']:.0%} of its core",
            flush=True,
        )
        return found

    def _stub(self) -> LeashedProcess:
        ports = [str(port) for port in self._ports]
        command = [sys.executable, "-m", "benchmarks.proxy.upstream", *ports]
        process = LeashedProcess(command, log=self._folder / "upstream.log")
        for port in self._ports:
            until_open(process, port, "the stub")
        place(process.pids(), self._cores.load)
        return process

    @contextmanager
    def _proxy(self) -> Iterator[Proxy]:
        """A proxy on the measured core."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        proxy = Proxy(
            folder, upstream=self._ports, kafka=self._kafka, s3=self._s3, bucket=self._bucket,
            settings=self._settings,
        )  # fmt: skip
        place(proxy.pids(), self._cores.measured)
        try:
            yield proxy
        finally:
            proxy.end()

    @contextmanager
    def _servers_stopped(self) -> Iterator[None]:
        servers: Sequence[KafkaServer | MinioServer] = (self._kafka, self._s3)
        for server in servers:
            server.stop()
        yield
        for server in servers:
            server.start()
        self._aside()

    def _aside(self) -> None:
        """Kafka and S3 stand elsewhere in production: here they take what the load leaves."""
        for server in (self._kafka, self._s3):
            place(server.pids(), self._cores.servers, idle=True)


def _line() -> dict[str, list[Figures]]:
    return {"saturation": [], "half": []}


if __name__ == "__main__":
    main()
