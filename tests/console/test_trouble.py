"""Planted texts, an unknown model, an api that is unavailable."""

from playwright.sync_api import expect

from .conftest import Console, OpenPage
from .content import PLANTED, STREET


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
    expect(page.get_by_role("alert")).to_contain_text("The API is not responding")
    expect(page.locator(".tile")).to_have_count(0)
    console.service.restart().wait_ready()
    expect(page.locator(".tile")).to_have_count(4)
