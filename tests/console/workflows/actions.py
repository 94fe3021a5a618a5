"""Readers whose actions are counted, or who have no mouse."""

from typing import Any

from playwright.sync_api import Locator, Page, expect

_MOST_TABS = 300
_COUNT_POINTERS = """() => {
    window.pointerEvents = 0;
    for (const name of ["pointermove", "pointerdown", "wheel"])
        addEventListener(name, () => (window.pointerEvents += 1), { capture: true });
}"""


class CountedPage:
    """A page that offers nothing but actions, and counts them."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.actions = 0

    def click(self, role: Any, name: str) -> None:
        """Click something in the content."""
        self.actions += 1
        self._page.get_by_role("main").get_by_role(role, name=name, exact=True).click()

    def enter(self, field: str, text: str) -> None:
        """Type a text into a field, which must be there."""
        self.actions += 1
        self._page.get_by_role("combobox", name=field).fill(text)

    def press(self, key: str) -> None:
        """Press a key."""
        self.actions += 1
        self._page.keyboard.press(key)


class Keyboard:
    """A reader who has a keyboard and no mouse."""

    def __init__(self, page: Page) -> None:
        self._page = page
        page.evaluate(_COUNT_POINTERS)

    def press(self, *keys: str) -> None:
        """Press keys, one after the other."""
        for key in keys:
            self._page.keyboard.press(key)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self._page.keyboard.type(text)

    def reach(self, target: Locator) -> None:
        """Press Tab until an element has the focus."""
        expect(target).to_be_visible()
        for _ in range(_MOST_TABS):
            if target.evaluate("element => element === document.activeElement"):
                return
            self.press("Tab")
        raise AssertionError(f"Tab does not reach {target}")

    def choose(self, target: Locator, key: str = "Enter") -> None:
        """Go to a link, a button or a box, and press a key on it."""
        self.reach(target)
        self.press(key)

    def fill(self, field: Locator, text: str) -> None:
        """Go to a field, and type into it."""
        self.reach(field)
        self.type(text)

    def check(self) -> None:
        """Fail if a pointer was used."""
        assert self._page.evaluate("window.pointerEvents") == 0
