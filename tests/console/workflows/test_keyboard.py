"""A whole round without a mouse: find, look, select, redrive, hold, release, erase, verify."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import SIGNING, Console, OpenPage
from tests.console.test_erasures import make_captures

from .actions import Keyboard
from .poison import find_letters, publish_poison, repair

MODEL = "keyed-cameras"
POISONED = "keyed-poison"


class Round:
    """What a reader does with the keyboard, step by step."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.keyboard = Keyboard(page)

    def find(self) -> None:
        """Go past the sidebar to the model, and filter."""
        main = self.page.get_by_role("main")
        expect(main.get_by_role("link", name=MODEL, exact=True)).to_be_visible()
        self.keyboard.choose(self.page.get_by_role("link", name="Skip to the content"))
        self.keyboard.fill(main.get_by_role("searchbox", name="Find a model"), MODEL)
        self.keyboard.choose(main.get_by_role("link", name=MODEL, exact=True))
        expect(self.page.locator(".tile")).to_have_count(5)
        self.keyboard.press("/")
        self.keyboard.type("frame_number > 2")
        self.keyboard.press("Enter")
        expect(self.page.locator(".tile")).to_have_count(2)

    def look_and_select(self) -> None:
        """Look at the second of those that match, select it, and go back to the list."""
        self.keyboard.press("Escape", "j", "j", "Enter")
        expect(self.page.get_by_role("heading", level=1)).to_have_text(f"{MODEL}-3")
        expect(self.page.get_by_role("img", name=f"Input of {MODEL}-3")).to_be_visible()
        self.keyboard.press("x", "Escape")
        expect(self.page.locator(".tile").first).to_be_visible()
        expect(self.page.get_by_role("region", name="Selection")).to_contain_text("1 selected")

    def redrive(self, letter: int) -> None:
        """Redrive a dead letter whose object has come."""
        self.keyboard.choose(self.find_link("Dead letters"))
        self.keyboard.choose(self.page.get_by_role("checkbox", name=f"Choose {letter}"), "Space")
        self.keyboard.choose(self.page.get_by_role("button", name="Redrive 1 …"))
        dialog = self.page.get_by_role("dialog")
        self.keyboard.choose(dialog.get_by_role("button", name="Redrive 1", exact=True))
        expect(dialog.get_by_role("status")).to_have_text("1 stored", timeout=180_000)
        self.keyboard.choose(dialog.get_by_role("button", name="Done"))
        expect(dialog).to_have_count(0)

    def hold(self) -> None:
        """Hold what is selected."""
        self.keyboard.choose(self.find_link(MODEL))
        self.keyboard.choose(self.page.get_by_role("link", name="Hold these …"))
        self.keyboard.fill(self.page.get_by_role("textbox", name="Name", exact=True), "by keyboard")
        self.keyboard.fill(self.page.get_by_role("textbox", name="Reason", exact=True), "a test")
        self.keyboard.choose(self.page.get_by_role("button", name="Place the hold"))
        self.keyboard.choose(self.page.get_by_role("link", name="See what it keeps"))
        held = self.page.get_by_role("region", name="What it keeps")
        expect(held.locator("dd").first).to_have_text("1")

    def release(self) -> None:
        """Release the hold that is shown."""
        self.keyboard.choose(self.page.get_by_role("button", name="Release …"))
        reason = self.page.get_by_role("dialog").get_by_role("textbox", name="Reason")
        self.keyboard.fill(reason, "the case is closed")
        self.keyboard.press("Enter")
        expect(self.page.get_by_text("Somebody released it")).to_be_visible()

    def erase(self) -> None:
        """Erase what is selected, and wait for the certificate."""
        self.keyboard.choose(self.find_link(MODEL))
        self.keyboard.choose(self.page.get_by_role("link", name="Erase these …"))
        confirmation = self.page.get_by_role("textbox", name="the number of what goes")
        self.keyboard.fill(confirmation, "1")
        self.keyboard.press("Enter")
        progress = self.page.get_by_role("region", name="Progress")
        expect(progress).to_contain_text("certified", timeout=180_000)

    def verify(self) -> None:
        """Follow the link to the certificate, and verify it by its key."""
        self.keyboard.choose(self.page.get_by_role("link", name=re.compile(r"^Certificate \d+$")))
        self.keyboard.fill(self.page.get_by_label("The key that you trust"), SIGNING.public.id)
        status = self.page.get_by_role("status").first
        expect(status).to_have_text(re.compile(r"^Certificate \d+ is valid\.$"))

    def find_link(self, text: str) -> Locator:
        """A link of the sidebar."""
        return self.page.get_by_role("navigation").get_by_role("link").filter(has_text=text)


@pytest.fixture
def letter(console: Console) -> int:
    """A dead letter whose object has come meanwhile."""
    console.produce(*make_captures(MODEL, 0, 5))
    capture = publish_poison(console, POISONED)
    [letter_id] = find_letters(console, POISONED)
    repair(console, capture)
    return letter_id


def test_a_whole_round_by_keyboard_alone(
    open_page: OpenPage, console: Console, letter: int
) -> None:
    reader = Round(open_page())
    reader.find()
    reader.look_and_select()
    reader.redrive(letter)
    reader.hold()
    reader.release()
    reader.erase()
    reader.verify()
    reader.keyboard.check()
    assert console.count(POISONED) == 1
    assert f"{MODEL}-3" not in console.find_ids(MODEL)
    assert console.count(MODEL) == 4
