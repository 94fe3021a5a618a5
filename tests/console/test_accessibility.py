"""No page has a serious finding of axe-core, in light or dark; the keyboard reaches everything."""

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import Console, OpenPage
from .content import SMALL, STREET

AXE = Path(__file__).parents[2] / "console" / "node_modules" / "axe-core" / "axe.min.js"
MORE = [f"#/compare?a={SMALL}&b={STREET}", f"#/m/{SMALL}?v=map"]
SERIOUS = {"serious", "critical"}


def find_serious(page: Page) -> list[tuple[str, list[str]]]:
    """Return the serious findings of axe-core, with their elements."""
    page.evaluate(AXE.read_text())
    # Every rule runs; what passes is not described, which took half of the time.
    results: Any = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        (violation["id"], [node["html"][:160] for node in violation["nodes"][:3]])
        for violation in results["violations"]
        if violation["impact"] in SERIOUS
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_finding(open_page: OpenPage, console: Console, scheme: str) -> None:
    inference = console.ask("GET", f"/v1/models/{STREET}/inferences/{STREET}-0009")
    queries = ["", "?v=table", f"?sel={inference['uid']}", "?f=nothing%20%3D%201"]
    for fragment in ["", *(f"#/m/{STREET}{query}" for query in queries), "#/list/audit", *MORE]:
        page = open_page(fragment, scheme=scheme)
        expect(
            page.locator("article, .tile, tbody tr, .large, .cell, [role=alert]").first
        ).to_be_visible()
        assert not find_serious(page), fragment


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_of_proof_has_a_serious_finding(open_page: OpenPage, scheme: str) -> None:
    for name in ("certificates", "audit", "reconcile", "keys"):
        page = open_page(f"#/list/{name}", scheme=scheme)
        expect(page.locator("tbody tr, .none").first).to_be_visible()
        assert not find_serious(page), name
    page.get_by_role("button", name="Make a key").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert not find_serious(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_signing_in_has_no_serious_finding(
    open_page: OpenPage, guarded: Console, scheme: str
) -> None:
    page = open_page(of=guarded, scheme=scheme)
    expect(page.get_by_label("API key")).to_be_visible()
    assert not find_serious(page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_dialog_has_a_serious_finding(open_page: OpenPage, scheme: str) -> None:
    page = open_page(f"#/m/{STREET}", scheme=scheme)
    expect(page.locator(".tile").first).to_be_visible()
    for key in ("j", "x", "?"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    assert not find_serious(page)
    for key in ("Escape", "Enter"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Edit …").click()
    expect(page.get_by_role("dialog").get_by_label("Value").first).to_be_visible()
    assert not find_serious(page)


def test_find_and_look_by_keyboard_alone(open_page: OpenPage) -> None:
    page = open_page(f"#/m/{STREET}")
    expect(page.locator(".tile").first).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("frame_number > 127")
    page.keyboard.press("Enter")
    expect(page.locator(".tile")).to_have_count(2)
    page.locator(".tile").first.focus()
    page.keyboard.press("Enter")
    heading = page.get_by_role("heading", level=1)
    expect(heading).to_have_text(f"{STREET}-0129")
    page.keyboard.press("j")
    expect(heading).to_have_text(f"{STREET}-0128")
