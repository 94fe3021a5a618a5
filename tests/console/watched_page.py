"""Checks that a page did nothing forbidden."""

from playwright.sync_api import ConsoleMessage, Page, Request

# The browser writes refusals of the API to its console, and tests cause them on purpose.
_EXPECTED = "Failed to load resource"


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
        """Fail if there was any fault."""
        assert not self._faults, self._faults
