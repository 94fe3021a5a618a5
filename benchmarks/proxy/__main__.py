"""`make bench-proxy`: direct, through nginx, and through the proxy, in turn in one run.

What is measured goes into benchmarks/proxy/results.json, from which
`python -m benchmarks.proxy.report` writes docs/reference/benchmarks/proxy.md.
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

from .cores import choose_cores, pin
from .measurement import Figures, Pids, measure
from .nginx import Nginx, binary, until_open
from .overload import measure_overload
from .proxy_process import Proxy
from .workloads import Ports, Workload, workloads

RESULTS = Path(__file__).with_name("results.json")
STOPPED = "proxy, S3 and Kafka stopped"
STRIPPED = "proxy, metadata stripped"
# Microseconds of each second that a half busy core works.
_HALF = 500_000
_TOPICS = ("inference-events", "inference-reports")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each line; medians are reported")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--minutes", type=float, default=10.0, help="of overload; 0: leave it out")
    parser.add_argument("--only", nargs="+", default=list(workloads()), help="workloads, by name")
    parser.add_argument(
        "--stripping",
        action="store_true",
        help="measure strip_metadata alone, beside what is known",
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of the proxy")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to write to")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(workloads()):
        parser.error(f"no such workload: {', '.join(unknown)}; known: {', '.join(workloads())}")
    binary()
    described = machine()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        bench = _Bench(arguments, Path(folder), stack)
        if arguments.stripping:
            results = {**_read_results(arguments.results), "stripping": bench.stripping()}
        else:
            results = {**bench.run(), "stripping": bench.stripping(), "machine": described}
    arguments.results.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {arguments.results}")


class _Bench:
    def __init__(self, arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self._arguments, self._folder = arguments, folder
        self._settings = dict(setting.split("=", 1) for setting in arguments.set)
        self._cores = choose_cores()
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
        pin(self._nginx.process.pids(), self._cores.measured)

    def run(self) -> dict[str, Any]:
        """All lines: `lines[workload][way][saturation or half]`, a list of the rounds' figures."""
        lines: dict[str, Any] = {}
        for number in range(self._arguments.rounds):
            for name in self._arguments.only:
                print(f"round {number + 1}, {name}", flush=True)
                self._round(workloads()[name], lines.setdefault(name, defaultdict(_line)))
        results = {
            "seconds": self._arguments.seconds,
            "settings": self._settings,
            "lines": lines,
        }
        if self._arguments.minutes:
            results["overload"] = self._overload()
        return results

    def stripping(self) -> dict[str, list[dict[str, Figures]]]:
        """By workload, of each round: at the rate that keeps the core half busy, with it and
        without."""
        rounds: dict[str, list[dict[str, Figures]]] = {}
        for number in range(self._arguments.rounds):
            for name in self._arguments.only:
                print(f"round {number + 1}, {name}, stripped or not", flush=True)
                rounds.setdefault(name, []).append(self._stripped(workloads()[name]))
        return rounds

    def _stripped(self, work: Workload) -> dict[str, Figures]:
        with self._proxy(stripping=True) as proxy:
            way, port = STRIPPED, proxy.ports.of(work)
            most = self._measured(way, work, port, proxy.pids)["rate"]
        half = {"rate": self._half(work, most)}
        with self._proxy(stripping=True) as proxy:
            stripped = self._measured(way, work, proxy.ports.of(work), proxy.pids, **half)
        with self._proxy() as proxy:
            whole = self._measured("proxy", work, proxy.ports.of(work), proxy.pids, **half)
        return {"stripped": stripped, "whole": whole}

    def _round(self, work: Workload, lines: Mapping[str, dict[str, list[Figures]]]) -> None:
        """All ways at saturation, then all at the rate that keeps the proxy's core half busy."""
        full = self._in_turn(work, lines, "saturation")
        half = {"rate": self._half(work, full["rate"])}
        self._in_turn(work, lines, "half", **half)
        with self._servers_stopped():
            # one proxy each, one after the other: at half load the budget fills as it does, and
            # nobody else has the core
            for what, options in (("saturation", {}), ("half", half)):
                with self._proxy() as proxy:
                    port = proxy.ports.of(work)
                    figures = self._measured(STOPPED, work, port, proxy.pids, **options)
                    lines[STOPPED][what].append({**figures, "captures": proxy.counted()})

    def _half(self, work: Workload, most: float) -> float:
        """The rate at which what serves is busy half of the time. It is less than half of `most`:
        a call that comes alone costs more than one of 32 at once."""
        with self._proxy() as proxy:
            port = proxy.ports.of(work)
            figures = self._measured("trial", work, port, proxy.serving, rate=most / 4)
        return min(most / 2, _HALF / float(figures["cpu"]))

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
                figures = self._measured(way, work, ports.of(work), pids, **options)
                lines[way][what].append(figures)
            lines["proxy"][what][-1] = figures = {**figures, "captures": proxy.counted()}
        print(f"    {figures['captures']}", flush=True)
        return figures

    def _overload(self) -> dict[str, Any]:
        print(f"{self._arguments.minutes:g} minutes of overload, S3 stopped", flush=True)
        with self._proxy() as proxy:
            self._s3.stop()
            figures = measure_overload(proxy, self._cores.load, minutes=self._arguments.minutes)
        print(f"  {figures}", flush=True)
        return figures

    def _measured(
        self, way: str, work: Workload, port: int, pids: Pids, **options: float
    ) -> Figures:
        options["seconds"] = self._arguments.seconds
        figures = measure(work.name, port, self._cores.load, pids, **options)
        print(
            f"  {way:28} {figures['rate']:8,.0f}/s  p50 {figures['p50']:7.2f} ms "
            f" p99 {figures['p99']:7.2f} ms  {figures['cpu']:6.0f} µs "
            f" {figures['share of a core']:.0%} of its core",
            flush=True,
        )
        return figures

    def _stub(self) -> LeashedProcess:
        ports = [str(port) for port in self._ports]
        command = [sys.executable, "-m", "benchmarks.proxy.upstream", *ports]
        process = LeashedProcess(command, log=self._folder / "upstream.log")
        for port in self._ports:
            until_open(process, port, "the stub")
        pin(process.pids(), self._cores.load)
        return process

    @contextmanager
    def _proxy(self, *, stripping: bool = False) -> Iterator[Proxy]:
        """A proxy on the measured core."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        proxy = Proxy(
            folder, upstream=self._ports, kafka=self._kafka, s3=self._s3, bucket=self._bucket,
            settings=self._settings, stripping=stripping,
        )  # fmt: skip
        pin(proxy.pids(), self._cores.measured)
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
            pin(server.pids(), self._cores.servers, idle=True)


def _read_results(results: Path) -> dict[str, Any]:
    return dict(json.loads(results.read_text())) if results.exists() else {}


def _line() -> dict[str, list[Figures]]:
    return {"saturation": [], "half": []}


if __name__ == "__main__":
    main()
