"""The pages offer only permitted actions, and explain refusals."""

from collections.abc import Sequence
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import Console, OpenPage
from .content import STREET
from .test_access import enter


def make_key(console: Console, grants: Sequence[dict[str, Any]]) -> str:
    """Create a key, and return its text."""
    body = {"name": "one of a test", "grants": grants}
    return str(console.ask("POST", "/v1/keys", body)["key"])


def open_with(open_page: OpenPage, console: Console, fragment: str, key: str) -> Page:
    """Open a page with a key."""
    page = open_page(fragment, of=console)
    enter(page, key)
    return page


@pytest.mark.parametrize("fragment", ["#/list/erasures", f"#/m/{STREET}"])
def test_a_reader_is_offered_no_erasure(
    open_page: OpenPage,
    guarded: Console,
    fragment: str,
) -> None:
    key = make_key(guarded, [{"role": "reader"}])
    page = open_with(open_page, guarded, fragment, key)
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("navigation").get_by_role("link", name="Erasures")).to_be_visible()
    expect(page.get_by_role("link", name="Erase …")).to_have_count(0)


def test_explains_a_missing_right(
    open_page: OpenPage,
    guarded: Console,
) -> None:
    grants: list[dict[str, Any]] = [{"role": "reader"}, {"rights": ["delete"], "model_id": "pets"}]
    fragment = f"#/list/erasures/new?of=model%3A{STREET}&f=TRUE"
    page = open_with(open_page, guarded, fragment, make_key(guarded, grants))
    expect(page.get_by_role("alert")).to_contain_text("You need the right “delete”")
    expect(page.get_by_role("button", name="Erase", exact=False)).to_have_count(0)
