"""The operators' pages: accessibility, width, use by keyboard."""

from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.servers.waiting import wait_until

from .conftest import Console, OpenPage, run_beside
from .test_accessibility import find_serious
from .test_dead_letters import publish
from .test_erasures import make_captures, place_hold

MODEL = "operated"
ERASURES = f"#/list/erasures/new?of=model%3A{MODEL}&f=TRUE"


@dataclass(frozen=True, slots=True)
class Operated:
    """The ids of what the pages show, one of each kind."""

    erasure: str
    letter: int
    hold: str


@pytest.fixture(scope="module")
def operated(console: Console) -> Operated:
    """One of each kind."""
    console.produce(*make_captures(MODEL, 0, 3))
    request: dict[str, Any] = {"model_ids": [MODEL], "filter": "frame_number = 0"}
    return Operated(
        erasure=console.ask("POST", "/v1/erasures", request)["id"],
        letter=publish_letter(console),
        hold=place_hold(console, MODEL)["id"],
    )


def publish_letter(console: Console) -> int:
    """Publish what is no event, wait for its dead letter, and return the id."""

    def find_newest() -> int:
        items = console.ask("GET", "/v1/dead-letters?state=open&limit=1")["items"]
        return int(items[0]["id"]) if items else 0

    before = find_newest()
    run_beside(publish(console.environment, [b"{"]))
    wait_until(lambda: find_newest() > before, seconds=180, what="the dead letter")
    return find_newest()


def list_pages(operated: Operated) -> list[tuple[str, str]]:
    """Return the address of each page, with a selector of its content."""
    return [
        ("#/list/erasures", "tbody tr"),
        (f"#/list/erasures/{operated.erasure}", "dl.figures"),
        (ERASURES, "dl.figures"),
        ("#/list/accounting", "tbody tr"),
        ("#/list/dead-letters", "tbody tr"),
        (f"#/list/dead-letters/{operated.letter}", "pre"),
        ("#/list/holds", "tbody tr"),
        (f"#/list/holds/{operated.hold}", "dl.figures"),
        ("#/list/retention", "h2"),
        (f"#/list/retention/model%3A{MODEL}?edit=1", "fieldset"),
        (f"#/list/holds/new?of=model%3A{MODEL}&f=TRUE", "form"),
    ]


def is_too_wide(page: Page) -> bool:
    """Return whether content is wider than the window."""
    return bool(
        page.evaluate(
            "document.documentElement.scrollWidth > innerWidth"
            " || document.getElementById('main').scrollWidth > innerWidth"
        )
    )


@pytest.mark.parametrize(("scheme", "narrow"), [("light", True), ("dark", False)])
def test_no_page_has_a_serious_finding_or_is_too_wide(
    open_page: OpenPage, operated: Operated, scheme: str, narrow: bool
) -> None:
    for fragment, selector in list_pages(operated):
        page = open_page(fragment, scheme=scheme, narrow=narrow)
        expect(page.locator(f"main {selector}").first).to_be_visible()
        assert not find_serious(page), fragment
        assert not is_too_wide(page), fragment


def tab_to(page: Page, name: str, *, role: Any = "button") -> None:
    """Press Tab until an element of this name has the focus."""
    target = page.get_by_role(role, name=name).first
    expect(target).to_be_visible()
    for _ in range(200):
        if target.evaluate("element => element === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{name} is not reached by Tab")


def test_erase_by_keyboard_alone(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("by-keyboard", 0, 2))
    page = open_page("#/list/erasures/new?of=model%3Aby-keyboard&f=TRUE")
    tab_to(page, "the number of what goes", role="textbox")
    page.keyboard.type("2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("region", name="Progress")).to_be_visible()
    tab_to(page, "← Erasures", role="link")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr").first).to_contain_text("by-keyboard")
