"""The columns of the table: chosen, moved, kept in the link and by a saved view."""

import re

from playwright.sync_api import Locator, Page, expect

from .conftest import Console, OpenPage
from .content import PLANTED, STREET
from .test_accessibility import LOOKS, check_page

TABLE = f"#/m/{STREET}?f=frame_number%20%3C%203&s=frame_number&v=table"
HASH = re.compile(r"^\s*[0-9a-f]{64}\s*$")
CHOSEN = f"{TABLE}&c=inference_id%2Cmetadata.frame_number"


def open_menu(page: Page) -> Locator:
    expect(page.locator("tbody tr").first).to_be_visible()
    page.get_by_text("Columns", exact=True).click()
    return page.locator("details[open] .menu")


def list_headings(page: Page) -> list[str]:
    return [text.strip("↑↓ \n") for text in page.locator("thead th").all_text_contents()][1:]


def test_columns_are_chosen_and_moved(open_page: OpenPage) -> None:
    page = open_page(TABLE)
    menu = open_menu(page)
    visible, hidden = menu.get_by_role("list", name="Shown"), menu.get_by_role("list", name="More")
    titles = ("Received", "Top label", "Score", "Predictions", "Model time", "night", "exposure")
    for title in titles:
        visible.get_by_label(title, exact=True).click()
    visible.get_by_label("data_source", exact=True).click()
    visible.get_by_label("camera_position", exact=True).click()
    menu.get_by_label("Search columns").fill("ANGLE")
    angle = hidden.get_by_label("camera_position.angle")
    angle.click()
    expect(visible.get_by_label("camera_position.angle", exact=True)).to_be_focused()
    assert list_headings(page) == ["Id", "frame_number", "camera_position.angle"]
    expect(page.locator("tbody tr").first.locator("td").last).to_have_text("10.5")
    menu.get_by_label("Search columns").fill("")
    hidden.get_by_label("Hash of the input").click()
    visible.get_by_role("button", name="Move Hash of the input to the left").press("Enter")
    expect(page.locator("thead th").nth(3)).to_contain_text("Hash of the input")
    expect(page.locator("tbody tr").first.locator("td").nth(3)).to_have_text(HASH)
    expect(page).to_have_url(re.compile("c=inference_id"))
    other = open_page(page.url.partition("/console/")[2])
    expect(other.locator("tbody tr")).to_have_count(3)
    assert list_headings(other) == list_headings(page)
    menu.get_by_role("button", name="Reset to default columns").click()
    expect(page.locator("thead th", has_text="Top label")).to_be_visible()
    expect(page).not_to_have_url(re.compile("c="))


def test_a_saved_view_keeps_them(open_page: OpenPage, console: Console) -> None:
    page = open_page(CHOSEN)
    expect(page.locator("tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Save view").click()
    page.get_by_label("Name").fill("two columns")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    [saved] = [view for view in console.ask("GET", "/v1/views")["items"] if view["columns"]]
    assert saved["columns"] == ["inference_id", "metadata.frame_number"]
    other = open_page(f"#/view/{saved['id']}")
    expect(other.locator("tbody tr")).to_have_count(3)
    assert list_headings(other) == ["Id", "frame_number"]
    console.send("DELETE", f"/v1/views/{saved['id']}")


def test_a_key_with_markup_and_commas_is_a_column(open_page: OpenPage, console: Console) -> None:
    page = open_page("#/m/planted?v=table")
    menu = open_menu(page)
    menu.get_by_role("list", name="Shown").get_by_label("Received", exact=True).click()
    assert page.title() == "planted · Inference Store"
    key = f"key {PLANTED[0][:60]}"
    expect(page.locator("thead th", has_text=key)).to_be_visible()
    page.goto(f"{console.address}/console/#/m/planted?v=table&c=metadata.a%252Cb%2Cinference_id")
    expect(page.locator("thead th").nth(1)).to_have_text("a,b")
    expect(page.locator("thead th").nth(2)).to_contain_text("Id")


@LOOKS
def test_the_menu_has_no_serious_finding(open_page: OpenPage, scheme: str, narrow: bool) -> None:
    page = open_page(CHOSEN, scheme=scheme, narrow=narrow)
    expect(open_menu(page).get_by_role("button", name="Reset to default columns")).to_be_visible()
    check_page(page)
