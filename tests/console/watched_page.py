"""Checks that a page did nothing forbidden, and what it asks."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import ConsoleMessage, Page, Request

from tests.servers.waiting import wait_until

# The browser writes refusals of the API to its console, and tests cause them on purpose.
_EXPECTED = "Failed to load resource"
_AXE = Path(__file__).parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"
_SERIOUS = {"serious", "critical"}
LOOKS = pytest.mark.parametrize(("scheme", "narrow"), [("light", True), ("dark", False)])


class WatchedPage:
    """A page with its faults: thrown errors, broken policies, requests to another host."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self._address = address
        self._faults: list[str] = []
        page.on("pageerror", lambda error: self._faults.append(str(error)))
        page.on("console", self._check_message)
        page.on("request", self._check_request)

    def _check_message(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and _EXPECTED not in message.text:
            self._faults.append(message.text)

    def _check_request(self, request: Request) -> None:
        if not request.url.startswith((f"{self._address}/", f"blob:{self._address}/")):
            self._faults.append(f"requested {request.url}")

    def check(self) -> None:
        assert not self._faults, self._faults


class AskedRequests:
    """The requests of a page to addresses with this end, from now on."""

    def __init__(self, page: Page, end: str) -> None:
        self.urls: list[str] = []
        self._page, self._end = page, end
        self._under_way: set[Request] = set()
        page.on("request", self._begin)
        page.on("requestfinished", self._finish)
        page.on("requestfailed", self._finish)

    def wait_answered(self) -> None:
        """Wait until each has its answer, so that the store has recorded it."""
        wait_in_page(self._page, lambda: not self._under_way, what=f"answers to …{self._end}")

    def _begin(self, request: Request) -> None:
        if request.url.endswith(self._end):
            self.urls.append(request.url)
            self._under_way.add(request)

    def _finish(self, request: Request) -> None:
        self._under_way.discard(request)


def wait_in_page(page: Page, check: Callable[[], bool], *, what: str) -> None:
    """Wait until `check()` is true, and take meanwhile what the page tells."""
    wait_until(lambda: bool(page.title()) and check(), seconds=180, what=what)


def allow_copying(page: Page) -> None:
    """Let a page write to the clipboard, and stop its clock: "copied" stays."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    stop_clock(page)


def open_acts(page: Page, what: str = "what matches") -> None:
    """Open the menu of what erases and holds, which is apart from what looks."""
    page.get_by_label(f"Erase or hold {what}").click()


def stop_clock(page: Page) -> None:
    """Stop a page's clock: what it shows for a moment it shows until something else replaces it."""
    page.clock.install()
    page.clock.pause_at(datetime.now(UTC) + timedelta(minutes=1))


def check_page(page: Page) -> None:
    """Check what is shown: no serious finding of axe-core, and nothing wider than the window."""
    page.evaluate(_AXE.read_text())
    # Every rule runs; what passes is not described, which took half of the time.
    results: Any = page.evaluate("axe.run({resultTypes: ['violations']})")
    serious = [
        (violation["id"], [node["html"][:160] for node in violation["nodes"][:3]])
        for violation in results["violations"]
        if violation["impact"] in _SERIOUS
    ]
    assert not serious, page.url
    assert page.evaluate(
        "document.documentElement.scrollWidth <= innerWidth"
        " && (document.getElementById('main')?.scrollWidth ?? 0) <= innerWidth"
    ), f"{page.url} is too wide"
