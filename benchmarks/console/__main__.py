"""`make bench-console SIZE=100k`: the console's budgets in a real browser."""

import argparse
from statistics import median

from playwright.sync_api import Browser, sync_playwright
from tests.console.chromium import CHROMIUM, OPTIONS

from benchmarks.machine import machine
from benchmarks.query.__main__ import SIZES

from .measures import MEASURES, Measure
from .stage import MODEL, serve_console

PICTURES = 10_000


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="100k", help="inferences")
    parser.add_argument("--rounds", type=int, default=3, help="of each line; medians are printed")
    arguments = parser.parse_args()
    print(", ".join(f"{name} {value}" for name, value in machine().items()), end=".\n\n")
    with serve_console(SIZES[arguments.size], PICTURES) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        print(f"| {arguments.size} inferences | is | at most |\n|---|---|---|")
        for measure in MEASURES:
            print(format_line(measure, browser, address, arguments.rounds), flush=True)
        browser.close()


def format_line(measure: Measure, browser: Browser, address: str, rounds: int) -> str:
    """Return a line of the table. What is measured once, is slow."""
    where = address if "paint" in measure.name else f"{address}/console/#/m/{MODEL}"
    times = 1 if measure.unit == "MB" or "thumbnails" in measure.name else rounds
    value = median(measure.run(browser, where) for _ in range(times))
    missed = " **missed**" if value > measure.most else ""
    unit = measure.unit
    return f"| {measure.name} | {value:,.0f} {unit}{missed} | {measure.most:,.0f} {unit} |"


if __name__ == "__main__":
    main()
