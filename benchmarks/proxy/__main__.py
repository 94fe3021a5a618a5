"""`make bench-proxy`: direct, through nginx, and through the proxy, in turn in one run.

The one that is measured has a core to itself; everything else runs on the others.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.servers.fixtures import unique
from tests.servers.kafka import KafkaServer
from tests.servers.minio import MinioServer
from tests.servers.process import LeashedProcess
from tests.servers.waiting import wait_until

from benchmarks.results import add_results_option, deliver, describe_machine, format_bars
from benchmarks.servers import cpu_seconds

from .report import STOPPED, format_figures, list_bars
from .ways import Nginx, Proxy, find_nginx, wait_until_open
from .workloads import Ports, Workload, workloads

# Microseconds of each second that a half busy core works.
_HALF: Final = 500_000
_TOPICS: Final = ("inference-events", "inference-reports")
_OVERLOAD: Final = "REST JSON image 100 kB"
_EVERY_SECONDS: Final = 0.5
Pids = Callable[[], Sequence[int]]
Figures = Mapping[str, Any]
Lines = Mapping[str, dict[str, list[Figures]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="of each line; medians are reported")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement")
    parser.add_argument("--minutes", type=float, default=10.0, help="of overload; 0: leave it out")
    parser.add_argument("--only", nargs="+", default=list(workloads()), help="workloads, by name")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="of the proxy")
    add_results_option(parser, "proxy")
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(workloads()):
        parser.error(f"no such workload: {', '.join(unknown)}; known: {', '.join(workloads())}")
    find_nginx()
    machine = describe_machine()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        results = {**_Bench(arguments, Path(folder), stack).run(), "machine": machine}
    deliver(arguments.results, results, format_bars(list_bars(results)), *format_figures(results))


class _Bench:
    def __init__(self, arguments: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self._arguments, self._folder = arguments, folder
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) < 2:
            raise SystemExit("bench-proxy needs two cores: one for the proxy, one for all else")
        # With two cores the servers share the load's.
        self._measured, self._load = {cores[0]}, set(cores[1:3])
        self._aside = set(cores[3:] or cores[1:])
        self._kafka = stack.enter_context(KafkaServer())
        self._s3 = stack.enter_context(MinioServer())
        for topic in _TOPICS:
            self._kafka.create_topic(topic, partitions=4)
        self._bucket = self._s3.create_bucket(unique())
        self._pin_servers()
        self._ports = Ports.free()
        upstream = self._start_stub()
        stack.callback(upstream.kill)
        self._nginx = Nginx(folder, self._ports)
        stack.callback(self._nginx.process.kill)
        _pin(self._nginx.process.pids(), self._measured)

    def run(self) -> dict[str, Any]:
        """All lines: `lines[workload][way][saturation or half]`, a list of the rounds' figures."""
        lines: dict[str, Any] = {}
        for number in range(self._arguments.rounds):
            for name in self._arguments.only:
                print(f"round {number + 1}, {name}", flush=True)
                self._measure_round(workloads()[name], lines.setdefault(name, defaultdict(_line)))
        results = {
            "seconds": self._arguments.seconds,
            "settings": self._arguments.set,
            "lines": lines,
        }
        first = workloads()[self._arguments.only[0]]
        results["puts"] = self._count_puts(first)
        results["beside"] = self._measure_beside(first)
        if self._arguments.minutes:
            results["overload"] = self._measure_overload(self._arguments.minutes)
        return results

    def _measure_round(self, work: Workload, lines: Lines) -> None:
        """All ways at saturation, then all at the rate that keeps the proxy's core half busy."""
        full = self._measure_in_turn(work, lines, "saturation")
        half = {"rate": self._find_half(work, full["rate"])}
        self._measure_in_turn(work, lines, "half", **half)
        with self._servers_stopped():
            # one proxy each, one after the other: at half load the budget fills as it does, and
            # nobody else has the core
            for what, options in (("saturation", {}), ("half", half)):
                with self._proxy() as proxy:
                    port = proxy.ports.of(work)
                    figures = self._measure(STOPPED, work, port, proxy.pids, **options)
                    lines[STOPPED][what].append({**figures, "captures": proxy.counted()})

    def _find_half(self, work: Workload, most: float) -> float:
        """The rate at which what serves is busy half of the time. It is less than half of `most`:
        a call that comes alone costs more than one of 32 at once."""
        with self._proxy() as proxy:
            port = proxy.ports.of(work)
            figures = self._measure("trial", work, port, proxy.serving, rate=most / 4)
        return min(most / 2, _HALF / float(figures["cpu"]))

    def _measure_in_turn(
        self, work: Workload, lines: Lines, what: str, **options: float
    ) -> Figures:
        with self._proxy() as proxy:
            ways: Mapping[str, tuple[Ports, Pids]] = {
                "direct": (self._ports, list),
                "nginx": (self._nginx.ports, self._nginx.process.pids),
                "proxy": (proxy.ports, proxy.pids),
            }
            for way, (ports, pids) in ways.items():
                figures = self._measure(way, work, ports.of(work), pids, **options)
                lines[way][what].append(figures)
            lines["proxy"][what][-1] = figures = {**figures, "captures": proxy.counted()}
        print(f"    {figures['captures']}", flush=True)
        return figures

    def _measure(
        self, way: str, work: Workload, port: int, pids: Pids, **options: float
    ) -> Figures:
        """Run the load; its figures, with the CPU of `pids`: microseconds a call, share of a core.
        These processes do not come and go."""
        before = cpu_seconds(pids())
        options["seconds"] = self._arguments.seconds
        loaded = _read_load(_start_load(work.name, port, self._load, **options))
        spent = cpu_seconds(pids()) - before
        cpu, share = 1e6 * spent / max(loaded["answered"], 1), spent / loaded["elapsed"]
        print(
            f"  {way:28} {loaded['rate']:8,.0f}/s  p50 {loaded['p50']:7.2f} ms "
            f" p99 {loaded['p99']:7.2f} ms  {cpu:6.0f} µs  {share:.0%} of its core,"
            f" {loaded['failed']} failed",
            flush=True,
        )
        return {**loaded, "cpu": cpu, "share of a core": share}

    def _count_puts(self, work: Workload) -> float:
        """Writes of objects for a million calls, at 500 calls a second."""
        with self._proxy() as proxy:
            self._measure("500 a second", work, proxy.ports.of(work), proxy.pids, rate=500.0)
            wait_until(lambda: not proxy.counted()["queued"], seconds=120, what="the last captures")
            counted = proxy.counted()
        return 1e6 * counted["segments"] / counted["published"]

    def _measure_beside(self, work: Workload) -> dict[str, Any]:
        """A hundred calls a second beside a program that takes all it gets of the measured core;
        and what SIGTERM costs right after."""
        options = {"rate": 100.0}
        direct = self._measure("direct", work, self._ports.of(work), list, **options)
        with self._proxy() as proxy:
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            try:
                _pin([busy.pid], self._measured)
                port = proxy.ports.of(work)
                beside = self._measure("beside a busy core", work, port, proxy.pids, **options)
                seen = proxy.counted()["seen"]
                proxy.service.stop()
            finally:
                busy.kill()
                busy.wait()
            log = proxy.service.text.splitlines()
            (stopped,) = (json.loads(line) for line in log if '"capture_stopped"' in line)
        times = beside["p50"] / direct["p50"]
        return {"times": times, "seen": seen, "published": stopped["published"], **beside}

    def _measure_overload(self, minutes: float) -> dict[str, Any]:
        """Call as often as it takes for so long with S3 stopped: the proxy's memory (MiB) at each
        tenth, and how much it moved after the first tenth, in which the budget fills."""
        print(f"{minutes:g} minutes of overload, S3 stopped", flush=True)
        with self._proxy() as proxy:
            self._s3.stop()
            port = proxy.ports.of(workloads()[_OVERLOAD])
            load = _start_load(_OVERLOAD, port, self._load, seconds=60 * minutes)
            began, sizes = time.monotonic(), []
            while load.poll() is None:
                sizes.append(proxy.resident())
                time.sleep(max(0.0, began + _EVERY_SECONDS * len(sizes) - time.monotonic()))
            figures = _read_load(load)
            settled = sizes[len(sizes) // 10 :]
            return {
                **{"workload": _OVERLOAD, "minutes": minutes},
                **{name: figures[name] for name in ("rate", "failed", "p99")},
                "tenths": [sizes[len(sizes) * tenth // 10] for tenth in range(10)] + [sizes[-1]],
                **{"least": min(settled), "most": max(settled), "captures": proxy.counted()},
            }

    def _start_stub(self) -> LeashedProcess:
        ports = [str(port) for port in self._ports]
        command = [sys.executable, "-m", "benchmarks.proxy.upstream", *ports]
        process = LeashedProcess(command, log=self._folder / "upstream.log")
        wait_until_open(process, self._ports, "the stub")
        _pin(process.pids(), self._load)
        return process

    @contextmanager
    def _proxy(self) -> Iterator[Proxy]:
        proxy = Proxy(
            Path(tempfile.mkdtemp(dir=self._folder)),
            upstream=self._ports,
            kafka=self._kafka,
            s3=self._s3,
            bucket=self._bucket,
            settings=dict(setting.split("=", 1) for setting in self._arguments.set),
        )
        _pin(proxy.pids(), self._measured)
        try:
            yield proxy
        finally:
            proxy.service.kill()  # at once: what it still holds is not waited for

    @contextmanager
    def _servers_stopped(self) -> Iterator[None]:
        for server in (self._kafka, self._s3):
            server.stop()
        yield
        for server in (self._kafka, self._s3):
            server.start()
        self._pin_servers()

    def _pin_servers(self) -> None:
        """Kafka and S3 stand elsewhere in production: here they take what the load leaves."""
        for server in (self._kafka, self._s3):
            _pin(server.pids(), self._aside, idle=True)


def _line() -> dict[str, list[Figures]]:
    return {"saturation": [], "half": []}


def _start_load(
    workload: str, port: int, cores: Iterable[int], **options: float
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.proxy.load", workload, str(port)]
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    _pin([process.pid], cores)
    return process


def _read_load(process: subprocess.Popen[str]) -> Figures:
    """Return its figures, once it is over. Raises RuntimeError where it ended with an error."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError("the load ended with an error: see above")
    return dict(json.loads(output))


def _pin(pids: Iterable[int], cores: Iterable[int], *, idle: bool = False) -> None:
    """Pin processes with all their threads; `idle`: they run only where nobody else wants to.

    Threads that they start later are placed as the ones that start them.
    """
    allowed = set(cores)
    for pid in pids:
        if idle:
            # Where Linux shares a core between sessions first, a priority counts inside its
            # session. There may be no such groups, or it was asked twice within a moment.
            with suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text("19")
        with suppress(FileNotFoundError):
            for thread in [int(folder.name) for folder in Path(f"/proc/{pid}/task").iterdir()]:
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(thread, allowed)
                    if idle:
                        os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    main()
