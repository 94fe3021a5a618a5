"""Edits of metadata: items are added and changed; stale edits are refused."""

from typing import Any

from playwright.sync_api import Locator, Page, expect

from .conftest import Console, OpenPage
from .content import STREET


def open_editor(open_page: OpenPage, console: Console, number: int) -> tuple[Page, Locator, str]:
    """Open the editor of an inference; return the page, the dialog and the inference's path."""
    path = f"/v1/models/{STREET}/inferences/{STREET}-{number:04d}"
    page = open_page(f"#/m/{STREET}?sel={console.ask('GET', path)['uid']}")
    page.get_by_role("button", name="Edit …").click()
    return page, page.get_by_role("dialog", name="Edit the metadata"), path


def read_items(console: Console, path: str) -> dict[str, tuple[str, Any]]:
    """Return the stored type and value of each key."""
    items = console.ask("GET", f"{path}?include=metadata")["metadata"]
    return {item["key"]: (item["type"], item["value"]) for item in items}


def test_items_are_changed_and_added(open_page: OpenPage, console: Console) -> None:
    page, dialog, path = open_editor(open_page, console, 80)
    expect(dialog.get_by_role("button", name="Nothing changed")).to_be_disabled()
    dialog.get_by_role("group", name="data_source").get_by_label("Value").fill("roof")
    dialog.get_by_role("button", name="Add an item").click()
    item = dialog.get_by_role("group", name="New item")
    item.get_by_label("Key").fill("reviewed")
    item.get_by_label("Type").select_option("bool")
    item.get_by_label("Value").fill("perhaps")
    dialog.get_by_role("button", name="Save 2 items").click()
    expect(dialog.get_by_role("alert")).to_contain_text("bool")
    item.get_by_label("Value").fill("true")
    dialog.get_by_role("button", name="Save 2 items").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="roof", exact=True)).to_be_visible()
    stored = read_items(console, path)
    assert stored["data_source"] == ("string", "roof")
    assert stored["reviewed"] == ("bool", "true")


def test_stale_revision_keeps_the_draft(open_page: OpenPage, console: Console) -> None:
    _, dialog, path = open_editor(open_page, console, 81)
    dialog.get_by_role("group", name="data_source").get_by_label("Value").fill("mine")
    other = [{"key": "note", "type": "string", "value": "theirs"}]
    console.ask("POST", f"{path}/metadata", {"metadata": other})
    dialog.get_by_role("button", name="Save one item").click()
    alert = dialog.get_by_role("alert")
    expect(alert).to_contain_text("Someone else changed the metadata while you were editing")
    assert read_items(console, path)["data_source"] != ("string", "mine")
    alert.get_by_role("button", name="Load current values").click()
    expect(dialog.get_by_role("group", name="note").get_by_label("Value")).to_have_value("theirs")
    dialog.get_by_role("button", name="Save one item").click()
    expect(dialog).to_have_count(0)
    stored = read_items(console, path)
    assert stored["data_source"] == ("string", "mine")
    assert stored["note"] == ("string", "theirs")
