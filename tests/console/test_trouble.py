"""Planted texts, narrow windows, an unknown model, an api that is unavailable."""

import pytest
from playwright.sync_api import expect

from .conftest import Console, OpenPage
from .content import PLANTED, STREET

PAGES = [
    "",
    f"#/m/{STREET}",
    f"#/m/{STREET}?v=table",
    "#/m/planted",
    "#/m/planted?v=table",
    "#/m/gone",
    "#/list/audit",
    "#/list/certificates",
    "#/list/certificates/1",
    "#/list/reconcile",
    "#/list/keys",
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("narrow", [False, True])
def test_no_page_is_wider_than_the_window(open_page: OpenPage, scheme: str, narrow: bool) -> None:
    for fragment in PAGES:
        page = open_page(fragment, scheme=scheme, narrow=narrow)
        content = "article, .tile, tbody tr, .trouble, .none, [data-step]"
        expect(page.locator(content).first).to_be_visible()
        assert page.evaluate(
            "document.documentElement.scrollWidth <= innerWidth"
            " && document.getElementById('main').scrollWidth <= innerWidth"
        ), fragment


def test_texts_from_outside_stay_text(open_page: OpenPage) -> None:
    page = open_page("#/m/planted")
    expect(page.locator(".tile")).to_have_count(len(PLANTED))
    for index in range(len(PLANTED)):
        page.locator(".tile").nth(index).click()
        expect(page.locator("section", has_text="Metadata").locator("dd").first).to_be_visible()
        assert "planted" not in page.title().replace("planted · Inference Store", "")
        assert page.locator("main b:text-is('bold'), img[src='x'], main script").count() == 0
        page.keyboard.press("Escape")
    page.get_by_role("button", name="Table").click()
    expect(page.locator("tbody tr")).to_have_count(len(PLANTED))
    page.locator("summary", has_text="note").click()
    expect(page.locator("details[open] li button").first).to_be_visible()


def test_shows_unknown_model(open_page: OpenPage) -> None:
    page = open_page("#/m/gone")
    expect(page.get_by_role("alert").first).to_contain_text("gone")


def test_recovers_from_an_unavailable_api(open_page: OpenPage, console: Console) -> None:
    page = open_page(f"#/m/{STREET}?f=frame_number%20%3C%205")
    expect(page.locator(".tile")).to_have_count(5)
    console.service.stop()
    box = page.get_by_role("combobox", name="Filter")
    box.fill("frame_number < 4")
    box.press("Escape")
    box.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("The api does not answer")
    expect(page.locator(".tile")).to_have_count(0)
    console.service.restart().wait_ready()
    expect(page.locator(".tile")).to_have_count(4)
