"""Selecting inferences by key and checkbox, actions on the selection, the table of keys."""

import re
import urllib.parse

from playwright.sync_api import Page, expect

from .conftest import Console, OpenPage
from .content import STREET
from .watched_page import allow_copying

MODEL = f"#/m/{STREET}?f=frame_number%20%3C%206&s=frame_number"


def expect_selected(page: Page, count: int) -> None:
    """Expect the bar to show that `count` inferences are selected."""
    bar = page.get_by_role("region", name="Selection")
    expect(bar.get_by_role("status").first).to_have_text(f"{count} selected")


def test_the_keys_are_shown(open_page: OpenPage) -> None:
    page = open_page()
    expect(page.get_by_role("heading", name="Models", level=1)).to_be_visible()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog", name="Keys")
    for word in (
        "Go to the filter",
        "The next inference within",
        "Select this inference",
        "Enlarge",
    ):
        expect(dialog.get_by_text(word)).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_tiles_are_selected_by_keyboard(open_page: OpenPage, console: Console) -> None:
    page = open_page(MODEL)
    expect(page.locator(".tile")).to_have_count(6)
    for key in ("j", "x", "j", "j", "x"):
        page.keyboard.press(key)
    expect_selected(page, 2)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{STREET}-0002")
    expect(page.get_by_role("button", name="Selected")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect_selected(page, 3)
    allow_copying(page)
    page.get_by_role("button", name="Copy ids").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    expected = [f"{STREET}-000{number}" for number in (0, 2, 3)]
    assert page.evaluate("navigator.clipboard.readText()").split() == expected
    assert find_linked(page, console, "Erase these") == expected
    assert find_linked(page, console, "Hold these") == expected
    page.keyboard.press("Escape")
    expect(page.locator(".tile").first).to_be_visible()
    expect_selected(page, 3)
    page.keyboard.press("Escape")
    expect(page.get_by_role("region", name="Selection")).to_have_count(0)


def find_linked(page: Page, console: Console, name: str) -> list[str]:
    """Return the ids of the inferences that a link of the bar selects."""
    link = page.get_by_role("link", name=re.compile(name)).get_attribute("href") or ""
    search = urllib.parse.parse_qs(link.partition("?")[2])
    assert search["of"] == [f"model:{STREET}"]
    return console.find_ids(STREET, filter=search["f"][0], sort="frame_number")


def test_rows_are_selected_by_their_boxes(open_page: OpenPage) -> None:
    page = open_page(f"{MODEL}&v=table")
    page.get_by_role("checkbox", name=f"Select {STREET}-0001").check()
    page.locator("tbody tr").nth(3).hover()
    page.keyboard.press("x")
    expect_selected(page, 2)
    page.get_by_role("button", name="Grid").click()
    expect(page.locator(".picked")).to_have_count(2)
    page.get_by_role("button", name="Select nothing").click()
    expect(page.locator(".picked")).to_have_count(0)
