"""Two models over the same pictures: disagreements come first."""

from playwright.sync_api import expect

from .conftest import OpenPage
from .content import COMPARED, SMALL, STREET


def test_disagreements_come_first(open_page: OpenPage) -> None:
    page = open_page(f"#/compare?a={SMALL}&b={STREET}")
    expect(page.get_by_text(f"{COMPARED} inputs seen by both")).to_be_visible()
    first = page.locator(".pair").first
    expect(first).to_contain_text("Another label")
    expect(first.locator("img")).to_have_count(2)
    expect(page.get_by_role("img", name="Share of inferences by top score")).to_be_visible()


def test_two_models_are_chosen_by_keyboard(open_page: OpenPage) -> None:
    page = open_page(f"#/m/{STREET}")
    page.get_by_role("link", name="Compare two models").press("Enter")
    expect(page.get_by_text("Choose two models")).to_be_visible()
    models = page.get_by_role("combobox", name="Model")
    expect(models.first).to_have_value(STREET)
    models.nth(1).select_option(SMALL)
    expect(page.get_by_text("was seen by B").or_(page.get_by_text("seen by both"))).to_be_visible()
    expect(page.locator("table tbody tr").first).to_be_visible()
