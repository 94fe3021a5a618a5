"""Holds: placed after a count, changed, released with a reason; what is stale is refused."""

import re
from typing import Any

from playwright.sync_api import expect

from .conftest import Console, OpenPage
from .test_erasures import make_captures

NEW = "#/list/holds/new"
_LATER = "2099-12-31T12:00"


def test_places_inspects_and_releases_a_hold(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("hallway", 0, 5))
    page = open_page("#/list/holds")
    page.get_by_role("link", name="Place a hold …").click()
    page.get_by_label("Model").select_option("model:hallway")
    page.get_by_role("combobox", name="Filter").fill("frame_number < 3")
    page.get_by_role("button", name="Count").click()
    expect(page.get_by_text("It is true of 3 inferences now.")).to_be_visible()
    page.get_by_label("Name").fill("hallway incident")
    page.get_by_label("Reason").fill("file <i>4711</i>")
    page.get_by_label("Until").fill(_LATER)
    page.get_by_role("button", name="Place the hold").click()
    expect(page.get_by_role("heading", name="“hallway incident” is in force")).to_be_visible()
    page.get_by_role("link", name="See what it keeps").click()
    held = page.get_by_role("region", name="What it keeps")
    expect(held.locator("dd").first).to_have_text("3")
    expect(page.get_by_text("file <i>4711</i>", exact=True).first).to_be_visible()
    page.get_by_role("button", name="Release …").click()
    page.get_by_label("Reason").fill("the case is closed")
    page.get_by_role("button", name="Release it").click()
    expect(page.get_by_text("Somebody released it")).to_be_visible()
    expect(page.get_by_role("region", name="History")).to_contain_text("the case is closed")
    expect(page.get_by_role("button", name="Release …")).to_have_count(0)
    page.get_by_role("link", name="← Legal holds").click()
    page.get_by_label("State").select_option("released")
    expect(page).to_have_url(re.compile("state=released"))
    expect(page.locator("tbody tr").first).to_contain_text("hallway incident")


def make_hold(console: Console, name: str, model: str) -> Any:
    body = {"name": name, "reason": "a test", "model_id": model, "inference_ids": [f"{model}-0"]}
    return console.ask("POST", "/v1/holds", body)


def test_explains_refusal_of_a_stale_release(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("stale-holds", 0, 1))
    hold = make_hold(console, "first", "stale-holds")
    page = open_page(f"#/list/holds/{hold['id']}")
    page.get_by_role("button", name="Release …").click()
    changed = {"name": "second", "reason": "a test", "model_id": "stale-holds"}
    console.ask("PUT", f"/v1/holds/{hold['id']}", changed | {"filter": "TRUE"})
    page.get_by_label("Reason").fill("closed")
    page.get_by_role("button", name="Release it").click()
    expect(page.get_by_role("alert")).to_contain_text("Somebody changed it after you opened it")
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_role("heading", name="second", level=1)).to_be_visible()
    console.ask("DELETE", f"/v1/holds/{hold['id']}?reason=over")


def test_warns_about_unknown_key_of_a_hold(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("warned", 0, 1))
    page = open_page(f"{NEW}?of=model%3Awarned")
    page.get_by_role("combobox", name="Filter").fill("camera_x = 'hall'")
    page.get_by_role("button", name="Count").click()
    expect(page.locator("mark")).to_have_text("camera_x")
    page.get_by_label("Name").fill("a slip")
    page.get_by_label("Reason").fill("a test")
    page.get_by_role("button", name="Place the hold").click()
    expect(page.get_by_role("main")).to_contain_text("a slip in a filter holds the wrong things")
    [hold] = [item for item in console.ask("GET", "/v1/holds")["items"] if item["name"] == "a slip"]
    console.ask("DELETE", f"/v1/holds/{hold['id']}?reason=over")


def test_change_a_hold(open_page: OpenPage, console: Console) -> None:
    console.produce(*make_captures("corridor", 0, 4))
    body = {"name": "corridor", "reason": "a test", "model_id": "corridor"}
    until = f"{_LATER}:30Z"
    hold = console.ask("POST", "/v1/holds", body | {"filter": "frame_number < 1", "until": until})
    page = open_page(f"#/list/holds/{hold['id']}")
    page.get_by_role("button", name="Change …").click()
    page.get_by_role("combobox", name="Filter").fill("frame_number < 3")
    page.get_by_role("button", name="Count").click()
    expect(page.get_by_text("It is true of 3 inferences now.")).to_be_visible()
    page.get_by_label("Name").fill("the <b>corridor</b>")
    page.get_by_role("button", name="Save the change").click()
    expect(page.get_by_role("heading", name="“the <b>corridor</b>” is in force")).to_be_visible()
    changed = console.ask("GET", f"/v1/holds/{hold['id']}")
    assert (changed["name"], changed["reason"]) == ("the <b>corridor</b>", "a test")
    assert changed["filter"] == "metadata.frame_number < 3"
    assert (changed["until"], changed["revision"]) == (hold["until"], 2)  # also its seconds
    page.get_by_role("button", name="See what it keeps").click()
    held = page.get_by_role("region", name="What it keeps")
    expect(held.locator("dd").first).to_have_text("3")
    expect(page.get_by_role("region", name="History")).to_contain_text("changed")
    console.ask("DELETE", f"/v1/holds/{hold['id']}?reason=over")


def test_stale_change_is_refused_and_keeps_what_was_typed(
    open_page: OpenPage, console: Console
) -> None:
    console.produce(*make_captures("stale-changes", 0, 1))
    hold = make_hold(console, "first", "stale-changes")
    page = open_page(f"#/list/holds/{hold['id']}")
    page.get_by_role("button", name="Change …").click()
    page.get_by_label("Name").fill("of somebody slower")
    faster = {"name": "of somebody faster", "reason": "a better one", "model_id": "stale-changes"}
    what = {"filter": "lens = 'wide'", "types": {"lens": "string"}}
    console.ask("PUT", f"/v1/holds/{hold['id']}", faster | what)
    page.get_by_role("button", name="Save the change").click()
    expect(page.get_by_role("alert")).to_contain_text("Somebody changed it after you opened it")
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_text("What you typed stays")).to_be_visible()
    expect(page.get_by_label("Name")).to_have_value("of somebody slower")
    expect(page.get_by_label("Reason")).to_have_value("a better one")
    expect(page.get_by_role("combobox", name="Filter")).to_have_value("metadata.lens = 'wide'")
    page.get_by_role("button", name="Save the change").click()
    expect(page.get_by_role("heading", name="“of somebody slower” is in force")).to_be_visible()
    changed = console.ask("GET", f"/v1/holds/{hold['id']}")
    assert (changed["revision"], changed["types"]) == (3, what["types"])
    console.ask("DELETE", f"/v1/holds/{hold['id']}?reason=over")
