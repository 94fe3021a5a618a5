"""What is measured in a browser, each in a page of its own with an empty cache."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, Page, ViewportSize

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
_WIDE: ViewportSize = {"width": 1440, "height": 900}
_ALL_SHOWN: ViewportSize = {"width": 1440, "height": 12_000}
_MOST_MS = 120_000.0
_WINDOW_MS = 500


@dataclass(frozen=True, slots=True)
class Measure:
    """A budget of the console, and how it is measured."""

    name: str
    unit: str
    most: float
    run: Callable[[Browser, str], float]


@contextmanager
def open_page(browser: Browser, size: ViewportSize | None = None) -> Iterator[Page]:
    """Yield a page with an empty cache, once the browser has built its window."""
    context = browser.new_context(viewport=size or _WIDE)
    context.set_default_timeout(_MOST_MS)
    context.add_init_script(_LISTEN)
    page = context.new_page()
    page.wait_for_timeout(_WINDOW_MS)
    yield page
    context.close()


def wait_for(page: Page, condition: str) -> float:
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


def measure_first_paint(browser: Browser, address: str) -> float:
    """Return the milliseconds until the shell is painted."""
    with open_page(browser) as page:
        page.goto(f"{address}/console/")
        page.locator("nav").wait_for()
        return float(page.evaluate(_PAINTED))


def measure_first_rows(browser: Browser, explore: str) -> float:
    """Return the milliseconds until the first rows are shown."""
    with open_page(browser) as page:
        page.goto(explore)
        return wait_for(page, _FILLED)


def measure_thumbnails(count: int, size: ViewportSize) -> Callable[[Browser, str], float]:
    """Return a function that returns the milliseconds until so many thumbnails are shown."""

    def measure(browser: Browser, explore: str) -> float:
        with open_page(browser, size) as page:
            page.goto(explore)
            return wait_for(page, _LOADED.format(count=count))

    return measure


def measure_longest_task(browser: Browser, explore: str) -> float:
    """Return the longest task of the main thread, in milliseconds, while a page is scrolled."""
    with open_page(browser) as page:
        page.goto(explore)
        wait_for(page, _LOADED.format(count=12))
        for _ in range(10):
            page.mouse.wheel(0, 900)
            page.wait_for_timeout(150)
        return float(page.evaluate("window.longest"))


def measure_heap(tiles: int) -> Callable[[Browser, str], float]:
    """Return a function that returns the heap in MB after so many tiles were scrolled through."""

    def measure(browser: Browser, explore: str) -> float:
        with open_page(browser) as page:
            page.goto(explore)
            wait_for(page, _FILLED)
            while page.locator(".tile").count() < tiles:
                before = page.locator(".tile").count()
                page.evaluate("document.getElementById('main').scrollTo(0, 1e9)")
                wait_for(page, f"document.querySelectorAll('.tile').length > {before}")
            client = page.context.new_cdp_session(page)
            client.send("HeapProfiler.collectGarbage")
            used: Any = client.send("Runtime.getHeapUsage")
            return float(used["usedSize"]) / 1e6

    return measure


def measure_frame(browser: Browser, explore: str) -> float:
    """Return the mean milliseconds between two frames while a picture with 500 boxes is moved."""
    with open_page(browser) as page:
        page.route("**/drawing", lambda route: route.fulfill(json=make_drawing(500)))
        page.goto(explore)
        wait_for(page, _LOADED.format(count=1))
        page.locator(".tile").first.click()
        page.locator("polygon.outline").nth(499).wait_for()
        page.keyboard.press("+")
        page.keyboard.press("+")
        return float(page.evaluate(_MOVE))


def make_drawing(shapes: int) -> dict[str, Any]:
    """Return a drawing of so many boxes, as the API gives it."""
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


MEASURES = [
    Measure("first paint of the shell", "ms", 500, measure_first_paint),
    Measure("first rows", "ms", 300, measure_first_rows),
    Measure("24 thumbnails", "ms", 1000, measure_thumbnails(24, _WIDE)),
    Measure("200 thumbnails", "ms", 3000, measure_thumbnails(200, _ALL_SHOWN)),
    Measure("200 thumbnails again", "ms", 1000, measure_thumbnails(200, _ALL_SHOWN)),
    Measure("longest task of the main thread", "ms", 100, measure_longest_task),
    Measure("a frame while 500 boxes are moved", "ms", 20, measure_frame),
    Measure("heap after 10,000 tiles", "MB", 300, measure_heap(10_000)),
]
"""In this order: what comes first asks for thumbnails that nobody asked for before."""
