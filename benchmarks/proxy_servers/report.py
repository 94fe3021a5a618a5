"""`python -m benchmarks.proxy_servers.report`: the results as a page of the docs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.pages import write_figures

from .cases import Cases

RESULTS: Final = Path(__file__).with_name("results.json")
TITLE: Final = "Figures: HTTP servers below the proxy"
OURS: Final = "ours"

Line = Mapping[str, Sequence[Mapping[str, float]]]
"""By server, the figures of each round."""


def main() -> None:
    """Write the page of figures."""
    write_figures("proxy-servers", TITLE, format_section(json.loads(RESULTS.read_text())))


def format_section(results: Mapping[str, Any]) -> str:
    """Return all of it, in Markdown."""
    alone, proxy, cases = results["alone"], results["proxy"], results["cases"]
    return "\n\n".join(
        [
            _describe_run(results),
            "CPU of a server that answers by itself, as the stub of `make bench-proxy` does:",
            "\n".join(_tabulate_cpu(alone)),
            "CPU of the real proxy, capture on, with its REST port on each server; only the process"
            " that serves is counted:",
            "\n".join(_tabulate_cpu(proxy)),
            "What of the proxy's CPU for a call its server takes, and the most that another server"
            " could save, from the first table over the second:",
            "\n".join(_tabulate_shares(alone, proxy)),
            "How many cases of the proxy's tests of the wire pass on each server; tests that pass"
            " on all are in the last line alone. A case that failed was tried once more:",
            "\n".join(_tabulate_cases(cases)),
        ]
    )


def _describe_run(results: Mapping[str, Any]) -> str:
    machine = results["machine"]
    rounds = len(next(iter(results["alone"].values()))[OURS])
    packages = ("granian", "hypercorn", "h11")
    versions = ", ".join(f"{name} {results['versions'][name]}" for name in packages)
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory GiB']} GiB,"
        f" Python {machine['python']}; load before the run {machine['load before']}; {versions};"
        f" the other versions are the product's. Medians of {rounds} rounds; µs are user and system"
        " time of all threads for each call, with 32 callers at once; *of ours* is the median of"
        " the rounds' ratios."
    )


def _tabulate_cpu(lines: Mapping[str, Line]) -> Iterator[str]:
    heads = " | ".join(f"{workload}, µs | of ours" for workload in lines)
    yield f"| server | {heads} |"
    yield "|---" * (1 + 2 * len(lines)) + "|"
    for server in next(iter(lines.values())):
        cells = [server]
        for line in lines.values():
            cells += [f"{_find_cpu(line, server):,.0f}", f"{_compare(line, server):.2f}"]
        yield f"| {' | '.join(cells)} |"


def _find_cpu(line: Line, server: str) -> float:
    return median(figures["cpu"] for figures in line[server])


def _compare(line: Line, server: str) -> float:
    """Return the CPU of a server in times of ours."""
    pairs = zip(line[server], line[OURS], strict=True)
    return median(theirs["cpu"] / ours["cpu"] for theirs, ours in pairs)


def _tabulate_shares(alone: Mapping[str, Line], proxy: Mapping[str, Line]) -> Iterator[str]:
    yield "| call | our server's share | least CPU alone | saves at most |"
    yield "|---" * 4 + "|"
    for workload, line in alone.items():
        whole, ours = _find_cpu(proxy[workload], OURS), _find_cpu(line, OURS)
        best = min(line, key=lambda server: _find_cpu(line, server))
        saved = (ours - _find_cpu(line, best)) / whole
        yield f"| {workload} | {ours / whole:.0%} | {best} | {saved:.0%} |"


def _tabulate_cases(cases: Mapping[str, Cases]) -> Iterator[str]:
    yield f"| case | {' | '.join(cases)} |"
    yield "|---" * (1 + len(cases)) + "|"
    for test in cases[OURS]:
        counts = [_count_passed(table[test]) for table in cases.values()]
        if any(passed < every for passed, every in counts):
            yield f"| {_name_test(test)} | {_format_counts(counts)} |"
    sums = [
        tuple(map(sum, zip(*map(_count_passed, table.values()), strict=True)))
        for table in cases.values()
    ]
    yield f"| all | {_format_counts([(passed, every) for passed, every in sums])} |"


def _count_passed(reasons: Mapping[str, str]) -> tuple[int, int]:
    """Return how many cases pass, and of how many."""
    return sum(not reason for reason in reasons.values()), len(reasons)


def _format_counts(counts: Sequence[tuple[int, int]]) -> str:
    return " | ".join(
        f"{passed} of {every}{'' if passed == every else ' **no**'}" for passed, every in counts
    )


def _name_test(test: str) -> str:
    return test.removeprefix("test_").replace("_", " ")


if __name__ == "__main__":
    main()
