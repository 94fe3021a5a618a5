"""The audit, with filters in the address."""

import re

import pytest
from playwright.sync_api import expect

from .conftest import Console, OpenPage
from .content import STREET


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
    expect(again.get_by_text("No entry matches.")).to_be_visible()
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


def test_shows_invalid_filter(open_page: OpenPage) -> None:
    page = open_page("#/list/audit?uid=nobody")
    expect(page.get_by_role("alert")).to_be_visible()
