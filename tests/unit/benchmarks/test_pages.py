"""The figures in the docs are those of the results that are kept."""

import json
from pathlib import Path
from types import ModuleType

from benchmarks.citus import report as citus
from benchmarks.erasure import report as erasure
from benchmarks.pages import FIGURES, PAGE, format_figures, replace_bars
from benchmarks.peers import report as peers
from benchmarks.proxy import report as proxy
from benchmarks.proxy_servers import report as proxy_servers
from benchmarks.query import report as query
from benchmarks.query.plot import draw_plot

_REPORTS: dict[str, ModuleType] = {
    **{"citus": citus, "erasure": erasure, "peers": peers},
    **{"proxy": proxy, "proxy-servers": proxy_servers, "query": query},
}


def test_pages_and_bars_are_those_of_the_results() -> None:
    page = PAGE.read_text()
    for name, report in _REPORTS.items():
        results = json.loads(Path(report.RESULTS).read_text())
        expected = format_figures(name, report.TITLE, report.format_section(results))
        assert (FIGURES / f"{name}.md").read_text() == expected
        if hasattr(report, "list_bars"):
            bars = [*report.list_bars(results)]
            assert len(bars) > 4
            assert replace_bars(page, name, bars) == page, name
            assert replace_bars(page, name, bars[1:]) != page, name
        if name == "query":
            assert (FIGURES / "query.svg").read_text() == draw_plot(results)
