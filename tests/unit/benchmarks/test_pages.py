"""The figures in the docs are those of the results that are kept."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmarks.citus import report as citus
from benchmarks.erasure import report as erasure
from benchmarks.pages import FIGURES, PAGE, Bar, format_figures, replace_bars
from benchmarks.peers import report as peers
from benchmarks.proxy import report as proxy
from benchmarks.proxy_servers import report as proxy_servers
from benchmarks.query import report as query
from benchmarks.query.plot import draw_plot

_REPORTS = {
    "citus": citus,
    "erasure": erasure,
    "peers": peers,
    "proxy": proxy,
    "proxy-servers": proxy_servers,
    "query": query,
}
_HELD = {
    name: page_report for name, page_report in _REPORTS.items() if hasattr(page_report, "list_bars")
}


def load_results(report: ModuleType) -> Any:
    """Return what was measured."""
    return json.loads(Path(report.RESULTS).read_text())


@pytest.mark.parametrize("name", _REPORTS)
def test_the_page_of_figures_is_that_of_the_results(name: str) -> None:
    report = _REPORTS[name]
    expected = format_figures(name, report.TITLE, report.format_section(load_results(report)))
    assert (FIGURES / f"{name}.md").read_text() == expected


@pytest.mark.parametrize("name", _HELD)
def test_the_table_of_bars_is_that_of_the_results(name: str) -> None:
    bars = [*_HELD[name].list_bars(load_results(_HELD[name]))]
    assert len(bars) > 4
    assert replace_bars(PAGE.read_text(), name, bars) == PAGE.read_text()


def test_the_plot_is_that_of_the_results() -> None:
    assert (FIGURES / "query.svg").read_text() == draw_plot(load_results(query))


def test_results_of_another_size_leave_the_docs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    pages = [FIGURES / "query.md", FIGURES / "query.svg", PAGE]
    before = [page.stat().st_mtime_ns for page in pages]
    query.report(load_results(query), in_docs=False)
    assert [page.stat().st_mtime_ns for page in pages] == before
    printed = capsys.readouterr().out
    assert "| a look-up by id | p99 < 50 ms |" in printed
    assert "10,000,000 inferences" in printed


def test_a_bar_that_is_missed_is_marked() -> None:
    page = "a\n\n<!-- bars of bench-x -->\nold\n<!-- end of the bars of bench-x -->\n\nb"
    bars = [Bar("met", "≤ 2", "1", is_met=True), Bar("missed", "≤ 2", "3", is_met=False)]
    written = replace_bars(page, "x", bars)
    assert "| met | ≤ 2 | 1 |\n| missed | ≤ 2 | 3 **no** |\n" in written
    assert "old" not in written
    assert written.startswith("a\n\n")
    assert written.endswith("\n\nb")


def test_a_page_without_a_place_for_bars_is_refused() -> None:
    with pytest.raises(ValueError, match="unpack"):
        replace_bars("a", "x", [])
