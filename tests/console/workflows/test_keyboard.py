"""A whole round without a mouse: find, look, select, redrive, hold, release, erase, verify."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import SIGNING, Console, OpenPage
from tests.console.test_erasures import make_captures

from .test_erasure import find_letters, publish_poison, repair

MODEL = "keyed-cameras"
POISONED = "keyed-poison"
MOST_TABS = 300
COUNT_POINTERS = """() => {
    window.pointerEvents = 0;
    for (const name of ["pointermove", "pointerdown", "wheel"])
        addEventListener(name, () => (window.pointerEvents += 1), { capture: true });
}"""


class Keyboard:
    """A reader who has a keyboard and no mouse."""

    def __init__(self, page: Page) -> None:
        self.page = page
        page.evaluate(COUNT_POINTERS)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def reach(self, target: Locator) -> None:
        """Press Tab until an element has the focus."""
        expect(target).to_be_visible()
        for _ in range(MOST_TABS):
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
        self.page.keyboard.type(text)

    def find(self) -> None:
        """Go past the sidebar to the model, and filter."""
        main = self.page.get_by_role("main")
        expect(main.get_by_role("link", name=MODEL, exact=True)).to_be_visible()
        self.choose(self.page.get_by_role("link", name="Skip to the content"))
        self.fill(main.get_by_role("searchbox", name="Find a model"), MODEL)
        self.choose(main.get_by_role("link", name=MODEL, exact=True))
        expect(self.page.locator(".tile")).to_have_count(5)
        self.press("/")
        self.page.keyboard.type("frame_number > 2")
        self.press("Enter")
        expect(self.page.locator(".tile")).to_have_count(2)

    def look_and_select(self) -> None:
        """Look at the second of those that match, select it, and go back to the list."""
        self.press("Escape", "j", "j", "Enter")
        expect(self.page.get_by_role("heading", level=1)).to_have_text(f"{MODEL}-3")
        expect(self.page.get_by_role("img", name=f"Input of {MODEL}-3")).to_be_visible()
        self.press("x", "Escape")
        expect(self.page.locator(".tile").first).to_be_visible()
        expect(self.page.get_by_role("region", name="Selection")).to_contain_text("1 selected")

    def redrive(self, letter: int) -> None:
        """Redrive a dead letter whose object has come."""
        self.choose(self.page.locator("summary", has_text="Operate"))
        self.choose(self.find_link("Dead letters"))
        self.choose(self.page.get_by_role("checkbox", name=f"Select {letter}"), "Space")
        self.choose(self.page.get_by_role("button", name="Redrive 1 …"))
        dialog = self.page.get_by_role("dialog")
        self.choose(dialog.get_by_role("button", name="Redrive 1", exact=True))
        expect(dialog.get_by_role("status")).to_have_text("1 stored", timeout=180_000)
        self.choose(dialog.get_by_role("button", name="Done"))
        expect(dialog).to_have_count(0)

    def hold(self) -> None:
        self.choose(self.find_link(MODEL))
        self.choose(self.page.get_by_label("Erase or hold these"))
        self.choose(self.page.get_by_role("link", name="Hold these …"))
        self.fill(self.page.get_by_role("textbox", name="Name", exact=True), "by keyboard")
        self.fill(self.page.get_by_role("textbox", name="Reason", exact=True), "a test")
        self.choose(self.page.get_by_role("button", name="Place the hold"))
        self.choose(self.page.get_by_role("link", name="See what it keeps"))
        held = self.page.get_by_role("region", name="What it keeps")
        expect(held.locator("dd").first).to_have_text("1")

    def release(self) -> None:
        self.choose(self.page.get_by_role("button", name="Release …"))
        reason = self.page.get_by_role("dialog").get_by_role("textbox", name="Reason")
        self.fill(reason, "the case is closed")
        self.press("Enter")
        expect(self.page.get_by_text("It was released")).to_be_visible()

    def erase(self) -> None:
        """Erase what is selected, and wait for the certificate."""
        self.choose(self.find_link(MODEL))
        self.choose(self.page.get_by_label("Erase or hold these"))
        self.choose(self.page.get_by_role("link", name="Erase these …"))
        confirmation = self.page.get_by_role("textbox", name="to confirm")
        self.fill(confirmation, "1")
        self.press("Enter")
        progress = self.page.get_by_role("region", name="Progress")
        expect(progress).to_contain_text("certified", timeout=180_000)

    def verify(self) -> None:
        """Follow the link to the certificate, and verify it by its key."""
        self.choose(self.page.get_by_role("link", name=re.compile(r"^Certificate \d+$")))
        self.fill(self.page.get_by_label("Trusted key"), SIGNING.public.id)
        status = self.page.get_by_role("status").first
        expect(status).to_have_text(re.compile(r"^Certificate \d+ is valid\.$"))

    def find_link(self, text: str) -> Locator:
        return self.page.get_by_role("navigation").get_by_role("link").filter(has_text=text)


@pytest.fixture
def letter(console: Console) -> int:
    """A dead letter whose object has come meanwhile."""
    console.produce(*make_captures(MODEL, 0, 5))
    capture = publish_poison(console, POISONED)
    [letter_id] = find_letters(console, POISONED)
    repair(console, capture)
    return letter_id


def test_a_round_by_keyboard_alone(open_page: OpenPage, console: Console, letter: int) -> None:
    reader = Keyboard(open_page())
    reader.find()
    reader.look_and_select()
    reader.redrive(letter)
    reader.hold()
    reader.release()
    reader.erase()
    reader.verify()
    assert reader.page.evaluate("window.pointerEvents") == 0
    assert console.count(POISONED) == 1
    assert f"{MODEL}-3" not in console.find_ids(MODEL)
    assert console.count(MODEL) == 4
