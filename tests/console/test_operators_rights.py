"""The pages offer only permitted actions, and explain refusals."""

import re
from collections.abc import Sequence
from typing import Any

from playwright.sync_api import Page, expect

from .conftest import Console, OpenPage
from .content import STREET
from .test_access import enter


def make_key(console: Console, grants: Sequence[dict[str, Any]]) -> str:
    body = {"name": "one of a test", "grants": grants}
    return str(console.ask("POST", "/v1/keys", body)["key"])


def open_with(open_page: OpenPage, console: Console, fragment: str, key: str) -> Page:
    page = open_page(fragment, of=console)
    enter(page, key)
    return page


def test_a_reader_is_offered_only_what_readers_may_do(
    open_page: OpenPage, guarded: Console
) -> None:
    key = make_key(guarded, [{"role": "reader"}])
    page = open_with(open_page, guarded, "#/list/erasures", key)
    menu = page.get_by_role("navigation", name="Console")
    for title in ("Certificates", "Erasures"):
        expect(menu.get_by_role("link", name=title)).to_be_visible()
    for title in ("Keys", "Audit", "Reconcile", "Exports"):
        expect(menu.get_by_role("link", name=title, exact=True)).to_have_count(0)
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("link", name="Erase …")).to_have_count(0)
    page.goto(f"{guarded.address}/console/#/m/{STREET}?f=frame_number%20%3C%206&s=frame_number")
    expect(page.locator(".tile")).to_have_count(6)
    expect(page.get_by_role("link", name="Erase …")).to_have_count(0)
    page.locator(".tile").first.focus()
    page.keyboard.press("x")
    bar = page.get_by_role("region", name="Selection")
    expect(bar).to_contain_text("1 selected")
    expect(page.get_by_role("button", name="Copy ids")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("these"))).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("Export"))).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{STREET}-0000")
    expect(page.get_by_text("data_source").first).to_be_visible()
    expect(page.get_by_role("button", name="Edit …")).to_have_count(0)


def test_explains_a_missing_right(open_page: OpenPage, guarded: Console) -> None:
    grants: list[dict[str, Any]] = [{"role": "reader"}, {"rights": ["delete"], "model_id": "pets"}]
    fragment = f"#/list/erasures/new?of=model%3A{STREET}&f=TRUE"
    page = open_with(open_page, guarded, fragment, make_key(guarded, grants))
    expect(page.get_by_role("alert")).to_contain_text("You need the right “delete”")
    expect(page.get_by_role("button", name="Erase", exact=False)).to_have_count(0)
