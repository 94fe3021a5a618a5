"""Writes what was measured into the docs: a page of figures, and a table of bars.

The page of figures is written whole, `docs/reference/benchmarks/<name>.md`. The table of bars lies
between two marks of `docs/explanation/benchmarks.md`, in the section of the benchmark.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

_DOCS: Final = Path(__file__).parents[1] / "docs"
FIGURES: Final = _DOCS / "reference" / "benchmarks"
PAGE: Final = _DOCS / "explanation" / "benchmarks.md"
_HEAD: Final = """# {title}

[Benchmarks](../../explanation/benchmarks.md) says what is measured and what the figures mean.
`python -m benchmarks.{module}.report` makes this page from the results of `make bench-{name}`.

"""


class Bar(NamedTuple):
    """A bar, the figure that is held to it, and whether it was met."""

    what: str
    bar: str
    result: str
    is_met: bool


def write_figures(name: str, title: str, section: str) -> None:
    """Write the page of figures."""
    (FIGURES / f"{name}.md").write_text(format_figures(name, title, section))


def write_bars(name: str, bars: Iterable[Bar]) -> None:
    """Replace the table of bars."""
    PAGE.write_text(replace_bars(PAGE.read_text(), name, bars))


def format_figures(name: str, title: str, section: str) -> str:
    """Return the page of figures, in Markdown."""
    module = name.replace("-", "_")
    return f"{_HEAD.format(title=title, name=name, module=module)}{section}\n"


def replace_bars(page: str, name: str, bars: Iterable[Bar]) -> str:
    """Return the page with another table of bars. Raise ValueError if it has no place for it."""
    begin, end = f"<!-- bars of bench-{name} -->", f"<!-- end of the bars of bench-{name} -->"
    before, rest = page.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{format_bars(bars)}\n\n{end}{after}"


def format_bars(bars: Iterable[Bar]) -> str:
    """Return the table of bars, in Markdown."""
    rows = [f"| {what} | {bar} | {result}{_mark(is_met)} |" for what, bar, result, is_met in bars]
    return "\n".join(["| what | bar | result |", "|---|---|---|", *rows])


def _mark(is_met: bool) -> str:
    return "" if is_met else " **no**"
