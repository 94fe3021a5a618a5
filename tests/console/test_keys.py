"""Keys: created, shown once, rotated, revoked."""

import urllib.error

from playwright.sync_api import Page, expect

from tests.servers.waiting import wait_until
from tests.settings import TOKEN

from .conftest import Console, OpenPage
from .content import STREET
from .test_access import enter
from .watched_page import allow_copying


def may_read(console: Console, key: str) -> bool:
    holder = Console(console.address, console.service, console.environment, key)
    try:
        holder.ask("GET", f"/v1/models/{STREET}")
    except urllib.error.HTTPError as error:
        assert error.code == 401
        return False
    return True


def open_keys(open_page: OpenPage, guarded: Console, key: str) -> Page:
    page = open_page("#/list/keys", of=guarded)
    enter(page, key)
    return page


def test_a_key_is_made_shown_once_and_revoked(open_page: OpenPage, guarded: Console) -> None:
    page = open_keys(open_page, guarded, TOKEN)
    page.get_by_role("button", name="Make a key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("<b>bold</b> dashboard")
    dialog.get_by_role("combobox", name="Expires").select_option("30")
    dialog.get_by_role("combobox", name="Model").fill(STREET)
    expect(dialog.get_by_label("What the role may do")).to_contain_text("See models")
    dialog.get_by_role("button", name="Make the key").click()
    key = dialog.get_by_label("The key").input_value()
    assert key.startswith("isk_")
    assert may_read(guarded, key)
    allow_copying(page)
    dialog.get_by_role("button", name="Copy").click()
    expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == key
    dialog.get_by_role("button", name="I have it").click()
    row = page.locator("tbody tr").filter(has_text="<b>bold</b> dashboard")
    expect(row).to_contain_text(f"reader of model {STREET}")
    expect(row).to_contain_text("works")
    assert key not in page.content()
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke the key").click()
    expect(row).to_contain_text("revoked")
    wait_until(lambda: not may_read(guarded, key), seconds=180, what="the key to end")


def rotate(page: Page, name: str, when: str) -> str:
    """Rotate a key, and return its new text."""
    page.get_by_role("button", name=f"Rotate {name}").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("The old secret stops working").select_option(label=when)
    dialog.get_by_role("button", name="Rotate the key").click()
    text = dialog.get_by_label("The key", exact=True).input_value()
    dialog.get_by_role("button", name="I have it").click()
    expect(dialog).to_have_count(0)
    assert text not in page.content()
    return text


def test_rotated_key_is_shown_once_and_replaces_the_old_one(
    open_page: OpenPage, guarded: Console
) -> None:
    grants = [{"role": "reader"}]
    first = guarded.ask("POST", "/v1/keys", {"name": "turning", "grants": grants})["key"]
    page = open_keys(open_page, guarded, TOKEN)
    second = rotate(page, "turning", "in a day")
    row = page.locator("tbody tr").filter(has_text="turning")
    expect(row).to_contain_text("old text until")
    assert may_read(guarded, first)
    assert may_read(guarded, second)
    third = rotate(page, "turning", "at once")
    expect(row).not_to_contain_text("old text until")
    assert may_read(guarded, third)
    wait_until(lambda: not may_read(guarded, second), seconds=180, what="the text to end")
    assert not may_read(guarded, first)


def test_own_key_cannot_be_rotated_at_once(open_page: OpenPage, guarded: Console) -> None:
    body = {"name": "my own", "grants": [{"role": "owner"}]}
    page = open_keys(open_page, guarded, guarded.ask("POST", "/v1/keys", body)["key"])
    page.get_by_role("button", name="Rotate my own").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("This is the key that you use here")
    expect(dialog.locator("option", has_text="at once")).to_have_count(0)
    page.keyboard.press("Escape")
    assert may_read(guarded, rotate(page, "my own", "in an hour"))
    page.get_by_role("button", name="Reload").click()
    expect(page.locator("tbody tr").filter(has_text="my own")).to_contain_text("works")


def test_rights_can_be_chosen_and_refusals_are_shown(open_page: OpenPage, guarded: Console) -> None:
    page = open_keys(open_page, guarded, TOKEN)
    page.get_by_role("button", name="Make a key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("two grants")
    dialog.get_by_role("combobox", name="Role").select_option("chosen")
    dialog.get_by_role("combobox", name="Over").select_option("everything")
    dialog.get_by_role("checkbox", name="export").check()
    dialog.get_by_role("button", name="Add a grant").click()
    second = dialog.get_by_role("group", name="Grant 2")
    second.get_by_role("combobox", name="Over").select_option("project")
    dialog.get_by_role("button", name="Make the key").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    second.get_by_role("textbox", name="Project").fill("building-7")
    dialog.get_by_role("button", name="Make the key").click()
    dialog.get_by_role("button", name="I have it").click()
    row = page.locator("tbody tr").filter(has_text="two grants")
    expect(row).to_contain_text("read, export of everything; reader of project building-7")
