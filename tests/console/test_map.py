"""The map, whose cells become a filter by location, and two models over the same pictures."""

from playwright.sync_api import expect

from .conftest import OpenPage
from .content import COMPARED, SMALL, STREET

MAP = f"#/m/{SMALL}?v=map"


def test_a_cell_becomes_a_filter(open_page: OpenPage) -> None:
    page = open_page(MAP)
    cells = page.locator("svg .cell")
    expect(cells).to_have_count(COMPARED)
    cells.first.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 inference", exact=True)).to_be_visible()
    expect(cells).to_have_count(1)
    assert "S_INTERSECTS(location, BBOX(" in page.url.replace("%20", " ").replace("%2C", ",")


def test_a_dragged_box_becomes_a_filter(open_page: OpenPage) -> None:
    page = open_page(MAP)
    expect(page.get_by_text(f"{COMPARED} inferences", exact=True)).to_be_visible()
    expect(page.get_by_role("complementary", name="Fields")).to_be_visible()
    expect(page.locator("svg .cell")).to_have_count(COMPARED)
    size = page.locator("figure svg[role=group]").bounding_box()
    assert size
    x, y = size["x"], size["y"]
    page.mouse.move(x + 20, y + 20)  # its corners are round
    page.mouse.down()
    page.mouse.move(x + size["width"] / 2, y + size["height"] - 2, steps=4)
    page.mouse.up()
    expect(page.locator("svg .cell")).to_have_count(COMPARED // 2)


def test_a_model_without_places_has_no_map(open_page: OpenPage) -> None:
    page = open_page(f"#/m/{STREET}")
    expect(page.get_by_role("button", name="Table")).to_be_visible()
    expect(page.get_by_role("button", name="Map")).to_have_count(0)


def test_disagreements_come_first(open_page: OpenPage) -> None:
    page = open_page(f"#/compare?a={SMALL}&b={STREET}")
    expect(page.get_by_text(f"{COMPARED} inputs seen by both")).to_be_visible()
    first = page.locator(".pair").first
    expect(first).to_contain_text("Another label")
    expect(first.locator("img")).to_have_count(2)
    expect(page.get_by_role("img", name="Share of inferences by top score")).to_be_visible()
