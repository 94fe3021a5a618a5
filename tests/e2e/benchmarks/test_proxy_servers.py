"""Other HTTP servers carry the proxy's application, and its tests say which cases they hold."""

import pytest
from benchmarks.proxy_servers import report
from benchmarks.proxy_servers.cases import run_cases
from benchmarks.proxy_servers.environment import LOCK, list_versions
from benchmarks.proxy_servers.plain_heads import plain
from benchmarks.proxy_servers.servers import SERVERS

_FILE = "tests/integration/proxy/test_rest_forwarding.py"
CASES = [
    f"{_FILE}::test_half_closed_caller_gets_its_answer",
    f"{_FILE}::test_lost_caller_cancels_the_upstream",
]


@pytest.mark.parametrize(
    ("server", "failing"),
    [
        ("ours", set()),
        ("uvicorn, httptools", {"test_half_closed_caller_gets_its_answer"}),
        ("aiohttp", set()),
    ],
)
def test_cases_run_on_another_server(server: str, failing: set[str]) -> None:
    cases = run_cases(server, CASES)
    assert len(cases) == len(CASES)
    assert {test for test, reasons in cases.items() if any(reasons.values())} == failing


def test_other_servers_are_locked_with_hashes() -> None:
    lock = LOCK.read_text()
    assert {"granian", "hypercorn"} <= list_versions().keys()
    assert lock.count("==") <= lock.count("--hash=sha256:")
    assert "://" not in lock


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 \r\nX-A: B\r\n\r\nC: D\r\n", b"HTTP/1.1 200 OK\r\nx-a: B\r\n\r\nC: D\r\n"),
        (b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"),
        (
            b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\n\r\n",
        ),
        (b"A: B\r\n\r\n", b"A: B\r\n\r\n"),
    ],
)
def test_heads_are_compared_by_their_meaning(answer: bytes, expected: bytes) -> None:
    assert plain(answer) == expected


def test_the_tables_say_ratios_and_cases() -> None:
    def line(*micros: float) -> dict[str, list[dict[str, float]]]:
        return {server: [{"cpu": cpu}] for server, cpu in zip(SERVERS, micros, strict=False)}

    cases = {"ours": {"test_a_b": {"x": "", "y": ""}}, "other": {"test_a_b": {"x": "", "y": "why"}}}
    section = report.format_section(
        {
            "machine": {"processor": "p", "cores": 2, "memory GiB": 8, "python": "3"}
            | {"load before": 0.1},
            "versions": {"granian": "1", "hypercorn": "2", "h11": "3"},
            "alone": {"call": line(40, 30)},
            "proxy": {"call": line(400, 380)},
            "cases": cases,
        }
    )
    assert "| uvicorn, httptools | 30 | 0.75 |" in section
    assert "| call | 10% | uvicorn, httptools | 2% |" in section
    assert "| a b | 2 of 2 | 1 of 2 **no** |" in section
