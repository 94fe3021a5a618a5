"""The lists of operators and auditors: the audit with its filters, comparisons with the bucket."""

import re

import pytest
from playwright.sync_api import expect

from .conftest import Console, OpenPage
from .content import STREET

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


@pytest.fixture(scope="module")
def edited(console: Console) -> str:
    """The uid of an inference whose metadata were edited once."""
    path = f"/v1/models/{STREET}/inferences/{STREET}-0020"
    metadata = [{"key": "seen", "type": "bool", "value": "true"}]
    console.ask("POST", f"{path}/metadata", {"metadata": metadata})
    return str(console.ask("GET", path)["uid"])


def test_filters_are_in_the_address(open_page: OpenPage, edited: str) -> None:
    page = open_page("#/list/audit")
    page.get_by_role("combobox", name="What").select_option("metadata_changed")
    expect(page).to_have_url(re.compile(r"audit\?action=metadata_changed$"))
    page.get_by_role("textbox", name="Inference").fill(edited)
    page.get_by_role("textbox", name="Inference").press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(f"uid={edited}"))
    page.locator("tbody summary").click()
    expect(page.locator("tbody pre")).to_contain_text('"seen"')
    again = open_page(page.url.partition("/console/")[2])
    expect(again.locator("tbody tr")).to_have_count(1)
    again.get_by_label("Until").fill("2020-01-01T00:00")
    again.get_by_role("button", name="Apply").click()
    expect(again.get_by_text("No matching entries.")).to_be_visible()
    again.go_back()
    expect(again.locator("tbody tr")).to_have_count(1)
    again.get_by_role("link", name="Clear").click()
    expect(again.locator("tbody tr").nth(1)).to_be_visible()


def test_value_filters_and_links_to_its_inference(open_page: OpenPage, edited: str) -> None:
    page = open_page(f"#/list/audit?action=metadata_changed&uid={edited}")
    page.locator("tbody").get_by_role("link", name=STREET).first.click()
    expect(page).to_have_url(re.compile(f"model_id={STREET}"))
    expect(page.get_by_role("combobox", name="Model")).to_have_value(STREET)
    page.locator("tbody").get_by_role("link", name=edited).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{STREET}-0020")


def test_every_list_loads(open_page: OpenPage) -> None:
    page = open_page()
    for title in LISTS:
        page.get_by_role("navigation").get_by_role("link", name=title, exact=True).click()
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
        expect(page.locator("tbody tr, .none").first).to_be_visible()


def test_starts_and_follows_a_comparison(open_page: OpenPage) -> None:
    page = open_page("#/list/reconcile")
    page.get_by_role("button", name="Compare now").click()
    expect(page).to_have_url(re.compile("list/reconcile/[0-9a-f-]{36}$"))
    expect(page.get_by_role("status").first).to_have_text(
        re.compile("Bucket and index agree|orphans|missing"), timeout=180_000
    )
    expect(page.get_by_text("objects that rows name")).to_be_visible()
    expect(page.get_by_text(re.compile(r"\d+ stored \+ 0 rebuilt"))).to_be_visible()
    page.get_by_role("link", name=re.compile("Missing")).click()
    expect(page).to_have_url(re.compile(r"\?kind=missing$"))
    expect(page.locator("tbody tr, .none").first).to_be_visible()
    page.get_by_role("link", name="← Reconcile").click()
    expect(page.locator("tbody tr").first).to_contain_text(re.compile("they (agree|differ)"))
