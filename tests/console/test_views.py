"""Views: saved from the page, opened by a link, changed and deleted."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import Console, OpenPage
from .content import STREET
from .test_access import make_key, open_with
from .watched_page import LOOKS, check_page

MODEL = f"#/m/{STREET}"
FILTER = "frame_number < 2"
ASKED = f"{MODEL}?f=frame_number%20%3C%202&s=frame_number&v=table"


@pytest.fixture(autouse=True)
def _no_views(console: Console) -> Iterator[None]:
    """Delete the views of each test at its end."""
    yield
    for view in list_views(console):
        console.send("DELETE", f"/v1/views/{view['id']}")


def list_views(console: Console) -> list[dict[str, Any]]:
    views: list[dict[str, Any]] = console.ask("GET", "/v1/views")["items"]
    return views


def add_view(console: Console, **more: Any) -> dict[str, Any]:
    body = {"name": "first frames", "model_id": STREET, "filter": FILTER, **more}
    saved: dict[str, Any] = console.ask("POST", "/v1/views", body)
    return saved


def edit(page: Page, name: str) -> None:
    page.get_by_text("Views", exact=True).click()
    page.get_by_role("button", name=f"Change {name}").click()
    expect(page.get_by_label("Name")).to_have_value(name)


def test_saves_and_reopens_the_current_view(open_page: OpenPage, console: Console) -> None:
    page = open_page(ASKED)
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_text("Views", exact=True).click()
    page.get_by_role("button", name="Save this view …").click()
    page.get_by_label("Name").fill("first <b>frames</b>")
    expect(page.get_by_label("Watch")).to_be_disabled()
    page.get_by_label("Everyone who can read the model").check()
    page.get_by_label("Watch").check()
    page.get_by_label("How often").select_option("every hour")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    [saved] = list_views(console)
    assert (saved["filter"], saved["sort"], saved["view"]) == (FILTER, "frame_number", "table")
    assert saved["shared"] == "project"
    assert saved["watch"] == {"every": "PT1H", "of": {"function": "count"}}
    other = open_page(MODEL)
    other.get_by_text("Views", exact=True).click()
    other.get_by_role("link", name="first <b>frames</b>").click()
    expect(other).to_have_url(re.compile(re.escape(ASKED)))
    expect(other.locator("tbody tr")).to_have_count(2)


def test_link_opens_a_view(open_page: OpenPage, console: Console) -> None:
    saved = add_view(console)
    page = open_page(f"#/view/{saved['id']}")
    expect(page).to_have_url(re.compile("f=frame_number%20%3C%202"))
    expect(page.get_by_text("2 inferences", exact=True)).to_be_visible()
    console.send("DELETE", f"/v1/views/{saved['id']}")
    gone = open_page(f"#/view/{saved['id']}")
    expect(gone.get_by_role("alert")).to_contain_text("It may have been deleted")


def test_renames_replaces_and_deletes_a_view(open_page: OpenPage, console: Console) -> None:
    add_view(console)
    page = open_page(f"{MODEL}?f=frame_number%20%3D%203")
    edit(page, "first frames")
    page.get_by_label("Name").fill("the third frame")
    page.get_by_label("Replace its filter").check()
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("link", name="the third frame")).to_be_visible()
    [changed] = list_views(console)
    assert (changed["name"], changed["filter"]) == ("the third frame", "frame_number = 3")
    page.get_by_role("button", name="Change the third frame").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete it for good").click()
    expect(page.get_by_text("No saved views for this model")).to_be_visible()
    assert list_views(console) == []


def test_concurrent_change_is_shown_and_loses_nothing(
    open_page: OpenPage, console: Console
) -> None:
    saved = add_view(console)
    page = open_page(MODEL)
    edit(page, "first frames")
    console.ask("PATCH", f"/v1/views/{saved['id']}", {"name": "of somebody faster"})
    page.get_by_label("Name").fill("of somebody slower")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Someone else changed it")
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_label("Name")).to_have_value("of somebody faster")
    page.get_by_label("Name").fill("of both")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert [view["name"] for view in list_views(console)] == ["of both"]


def test_explains_a_name_conflict(open_page: OpenPage, console: Console) -> None:
    add_view(console)
    page = open_page(MODEL)
    page.get_by_text("Views", exact=True).click()
    page.get_by_role("button", name="Save this view …").click()
    page.get_by_label("Name").fill("first frames")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("choose another name")


@LOOKS
def test_the_list_and_the_dialog_have_no_serious_finding(
    open_page: OpenPage, console: Console, scheme: str, narrow: bool
) -> None:
    add_view(console, shared="project")
    page = open_page(MODEL, scheme=scheme, narrow=narrow)
    if narrow:
        page.get_by_role("button", name="More", exact=True).click()
    page.get_by_text("Views", exact=True).click()
    expect(page.get_by_role("link", name="first frames")).to_be_visible()
    check_page(page)
    page.get_by_role("button", name="Change first frames").click()
    expect(page.get_by_label("Name")).to_have_value("first frames")
    check_page(page)


def test_a_reader_changes_no_view(open_page: OpenPage, console: Console, guarded: Console) -> None:
    """The reader sees no views of another model."""
    add_view(console, shared="project")
    add_view(console, name="secret of the pets", model_id="pets", filter="ok", shared="project")
    add_view(console, name="somebody's own")
    key = make_key(guarded, [{"role": "reader", "model_id": STREET}])
    page = open_with(open_page, guarded, MODEL, key)
    page.get_by_text("Views", exact=True).click()
    expect(page.get_by_role("link", name="first frames")).to_be_visible()
    expect(page.get_by_role("button", name="Change first frames")).to_have_count(0)
    for hidden in ("secret of the pets", "somebody's own"):
        expect(page.get_by_text(hidden)).to_have_count(0)
    page.get_by_role("button", name="Save this view …").click()
    expect(page.get_by_label("Only me")).to_be_checked()
    expect(page.get_by_label("Everyone who can read the model")).to_be_disabled()
    page.get_by_label("Name").fill("a reader's own")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("link", name="a reader's own")).to_be_visible()
    page.get_by_role("button", name="Change a reader's own").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete it for good").click()
    expect(page.get_by_role("link", name="a reader's own")).to_have_count(0)
