"""The lists of operators and auditors."""

from playwright.sync_api import expect

from .conftest import OpenPage

LISTS = (
    "Accounting",
    "Dead letters",
    "Retention",
    "Legal holds",
    "Erasures",
    "Exports",
    "Certificates",
    "Audit",
    "Reconcile",
    "Keys",
)


def test_every_list_loads(open_page: OpenPage) -> None:
    page = open_page()
    for title in LISTS:
        page.get_by_role("navigation").get_by_role("link", name=title, exact=True).click()
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
        expect(page.locator("tbody tr, .none").first).to_be_visible()
