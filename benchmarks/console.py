"""`make bench-console SIZE=100k`: the console's budgets in a real browser.

Over many inferences, of which the newest have pictures. Each line is measured in a page of its own
with an empty cache.
"""

import argparse
import asyncio
import io
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from obstore import put_async
from obstore.store import S3Store
from PIL import Image
from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright
from tests.console.chromium import CHROMIUM, OPTIONS
from tests.servers.minio import MinioServer
from tests.servers.postgres import Postgres

from benchmarks.query.dataset import SIZES, count_partitions, dataset
from benchmarks.query.population import MODELS

from .events import open_store
from .results import Bar, add_results_option, deliver, describe_machine, format_bars
from .servers import start_api

_MODEL = MODELS[0]
_BUCKET = "captures"  # that the population's keys name
_PICTURES = 10_000
_DIFFERENT = 500  # more than are shown at once: a browser decodes equal ones once
_AT_ONCE = 100
_NEWEST = """
SELECT array_agg(data_storage_key) FROM (
  SELECT data_storage_key FROM inference
  WHERE model = (SELECT model FROM registration WHERE model_id = '{model}')
  ORDER BY received_at DESC, uid DESC LIMIT {limit}
) AS newest WHERE data_storage_key IS NOT NULL
"""

# The population has no task type, and pictures are shown of those that have one.
_SHOW_PICTURES = "UPDATE registration SET task_type = 'object_detection' WHERE model_id = '{model}'"
_LISTEN = """
window.longest = 0;  // task of the main thread, in milliseconds
window.filled = 0;  // when the first row was shown
window.shown = [];  // when each thumbnail was shown, in their order
setInterval(() => {
  const isShown = (picture) => picture.complete && picture.naturalWidth;
  const count = [...document.querySelectorAll(".tile .frame img")].filter(isShown).length;
  if (document.querySelector(".tile time")) window.filled ||= performance.now();
  while (window.shown.length < count) window.shown.push(performance.now());
}, 5);
new PerformanceObserver((list) => {
  for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
}).observe({ type: "longtask", buffered: true });
"""
_LOADED = "window.shown.at({count} - 1)"
_PAINTED = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
_MOVE = """new Promise((resolve) => {
  const box = document.querySelector(".zoom").getBoundingClientRect();
  const send = (name, x) => document.querySelector(".zoom").dispatchEvent(new PointerEvent(name, {
    bubbles: true, pointerId: 1,
    clientX: box.x + box.width / 2 + x, clientY: box.y + box.height / 2,
  }));
  Element.prototype.setPointerCapture = () => {};
  send("pointerdown", 0);
  const begun = performance.now();
  let frames = 0;
  requestAnimationFrame(function next() {
    frames += 1;
    send("pointermove", 120 * Math.sin(frames / 10));
    if (frames < 120) requestAnimationFrame(next);
    else resolve((performance.now() - begun) / frames);
  });
})"""
_FILLED = "window.filled"
# Tiles that are far from the window are not there: the summary counts them.
_COUNT = "(parseInt(document.querySelector('.summary b').textContent.replaceAll(',', '')) || 0)"
_WIDE: ViewportSize = {"width": 1440, "height": 900}
_ALL_SHOWN: ViewportSize = {"width": 1440, "height": 12_000}
_MOST_MS = 120_000.0
_WINDOW_MS = 500


@dataclass(frozen=True, slots=True)
class _Measure:
    name: str
    unit: str
    most: float
    run: Callable[[Browser, str], float]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="100k", help="inferences")
    parser.add_argument("--rounds", type=int, default=3, help="of each line; medians are printed")
    add_results_option(parser, "console")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": describe_machine(), "inferences": arguments.size}
    size = SIZES[arguments.size]
    with _serve_console(size, _PICTURES) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        results["lines"] = {
            measure.name: _measure_line(measure, browser, address, arguments.rounds)
            for measure in _MEASURES
        }
        browser.close()
    bars = (_hold(measure, results["lines"][measure.name]) for measure in _MEASURES)
    deliver(arguments.results, results, f"{arguments.size} inferences.", format_bars(bars))


def _measure_line(measure: _Measure, browser: Browser, address: str, rounds: int) -> list[float]:
    """Measure a line in each round, but what is slow once."""
    where = address if "paint" in measure.name else f"{address}/console/#/m/{_MODEL}"
    times = 1 if measure.unit == "MB" or "thumbnails" in measure.name else rounds
    values = [measure.run(browser, where) for _ in range(times)]
    print(f"{measure.name}: {values} {measure.unit}", flush=True)
    return values


def _hold(measure: _Measure, values: list[float]) -> Bar:
    bar = f"≤ {measure.most:,.0f} {measure.unit}"
    value = median(values)
    return Bar(measure.name, bar, f"{value:,.0f} {measure.unit}", value <= measure.most)


@contextmanager
def _serve_console(size: int, pictures: int) -> Iterator[str]:
    """Yield the address of an api over `size` inferences, the newest of them with pictures."""
    with ExitStack() as stack:
        _, dsn = stack.enter_context(dataset(size))
        asyncio.run(count_partitions(dsn))
        Postgres(dsn).execute(_SHOW_PICTURES.format(model=_MODEL))
        minio = stack.enter_context(MinioServer())
        minio.create_bucket(_BUCKET)
        keys = Postgres(dsn).ask(_NEWEST.format(model=_MODEL, limit=pictures))
        asyncio.run(_put_pictures(open_store(minio, _BUCKET), keys or []))
        yield start_api(stack, dsn, minio, _BUCKET).address


async def _put_pictures(store: S3Store, keys: list[str]) -> None:
    pictures = [_make_picture() for _ in range(_DIFFERENT)]
    for begin in range(0, len(keys), _AT_ONCE):
        batch = (key.removeprefix(f"s3://{_BUCKET}/") for key in keys[begin : begin + _AT_ONCE])
        await asyncio.gather(
            *(
                put_async(store, key, pictures[(begin + number) % _DIFFERENT])
                for number, key in enumerate(batch)
            )
        )


def _make_picture(width: int = 640, height: int = 480) -> bytes:
    """Return a JPEG of a frame's size, like no other: coarse and fine structure, as of a photo."""
    buffer = io.BytesIO()
    channels = [
        Image.blend(
            Image.effect_noise((8, 6), 120).resize((width, height), Image.Resampling.BICUBIC),
            Image.effect_noise((width // 8, height // 8), 60).resize((width, height)),
            0.3,
        )
        for _ in range(3)
    ]
    Image.merge("RGB", channels).save(buffer, "JPEG")
    return buffer.getvalue()


@contextmanager
def _open_page(browser: Browser, size: ViewportSize | None = None) -> Iterator[Page]:
    """Yield a page with an empty cache, once the browser has built its window."""
    context = browser.new_context(viewport=size or _WIDE)
    context.set_default_timeout(_MOST_MS)
    context.add_init_script(_LISTEN)
    page = context.new_page()
    page.wait_for_timeout(_WINDOW_MS)
    yield page
    context.close()


def _wait_for(page: Page, condition: str) -> float:
    """Wait for a condition; return its value: of a time the milliseconds since the page began.

    It is looked at from here: the page's policy forbids the waiting of playwright. Raises
    TimeoutError if it does not hold in time.
    """
    until = time.monotonic() + _MOST_MS / 1000
    while not (value := page.evaluate(condition)):
        if time.monotonic() > until:
            raise TimeoutError(condition)
        page.wait_for_timeout(50)
    return float(value)


def _measure_first_paint(browser: Browser, address: str) -> float:
    with _open_page(browser) as page:
        page.goto(f"{address}/console/")
        page.locator("nav").first.wait_for()
        return float(page.evaluate(_PAINTED))


def _measure_first_rows(browser: Browser, explore: str) -> float:
    with _open_page(browser) as page:
        page.goto(explore)
        return _wait_for(page, _FILLED)


def _measure_thumbnails(count: int, size: ViewportSize) -> Callable[[Browser, str], float]:
    def measure(browser: Browser, explore: str) -> float:
        with _open_page(browser, size) as page:
            page.goto(explore)
            return _wait_for(page, _LOADED.format(count=count))

    return measure


def _measure_longest_task(browser: Browser, explore: str) -> float:
    with _open_page(browser) as page:
        page.goto(explore)
        _wait_for(page, _LOADED.format(count=12))
        for _ in range(10):
            page.mouse.wheel(0, 900)
            page.wait_for_timeout(150)
        return float(page.evaluate("window.longest"))


def _measure_heap(tiles: int) -> Callable[[Browser, str], float]:
    """Return a function that returns the heap in MB after so many tiles were scrolled through."""

    def measure(browser: Browser, explore: str) -> float:
        with _open_page(browser) as page:
            page.goto(explore)
            _wait_for(page, _FILLED)
            while (shown := page.evaluate(_COUNT)) < tiles:
                page.evaluate("document.getElementById('main').scrollTo(0, 1e9)")
                _wait_for(page, f"{_COUNT} > {shown}")
            client = page.context.new_cdp_session(page)
            client.send("HeapProfiler.collectGarbage")
            used: Any = client.send("Runtime.getHeapUsage")
            return float(used["usedSize"]) / 1e6

    return measure


def _measure_frame(browser: Browser, explore: str) -> float:
    """Return the mean milliseconds between two frames while a picture with 500 boxes is moved."""
    with _open_page(browser) as page:
        page.route("**/drawing", lambda route: route.fulfill(json=_make_drawing(500)))
        page.goto(explore)
        _wait_for(page, _LOADED.format(count=1))
        page.locator(".tile").first.click()
        page.locator("polygon.outline").nth(499).wait_for()
        page.keyboard.press("+")
        page.keyboard.press("+")
        return float(page.evaluate(_MOVE))


def _make_drawing(shapes: int) -> dict[str, Any]:
    return {
        "units": "shares",
        "problem": None,
        "shapes": [
            {
                "kind": "box",
                "ordinal": number,
                "rank": number + 1,
                "label": f"label {number % 20}",
                "score": 0.9,
                "points": [[x, y], [x + 0.03, y], [x + 0.03, y + 0.03], [x, y + 0.03]],
            }
            for number in range(shapes)
            for x, y in [((number % 25) / 26, (number // 25) / 21)]
        ],
    }


_MEASURES = [
    _Measure("first paint of the shell", "ms", 500, _measure_first_paint),
    _Measure("first rows", "ms", 300, _measure_first_rows),
    _Measure("24 thumbnails", "ms", 1000, _measure_thumbnails(24, _WIDE)),
    _Measure("200 thumbnails", "ms", 3000, _measure_thumbnails(200, _ALL_SHOWN)),
    _Measure("200 thumbnails again", "ms", 1000, _measure_thumbnails(200, _ALL_SHOWN)),
    _Measure("longest task of the main thread", "ms", 100, _measure_longest_task),
    _Measure("a frame while 500 boxes are moved", "ms", 20, _measure_frame),
    _Measure("heap after 10,000 tiles", "MB", 300, _measure_heap(10_000)),
]
"""In this order: what comes first asks for thumbnails that nobody asked for before."""


if __name__ == "__main__":
    main()
