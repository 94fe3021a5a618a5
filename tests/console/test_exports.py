"""Exports: counted, written, downloaded, deleted, from Explore and of a selection."""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from .conftest import Console, OpenPage
from .test_erasures import make_captures
from .watched_page import LOOKS, check_page

MODEL = "exported-cameras"
COUNT = 6
EXPLORE = f"#/m/{MODEL}?f=frame_number%20%3C%204&s=frame_number"
WRITE_MS = 180_000


@pytest.fixture(scope="module", autouse=True)
def cameras(console: Console) -> None:
    console.produce(*make_captures(MODEL, 0, COUNT))


def open_dialog(page: Page) -> None:
    """Open the dialog of a new export, and wait for the number that matches."""
    page.get_by_role("button", name="Export …").click()
    expect(page.get_by_role("dialog", name="Export")).to_contain_text("match.")


def request_lines(page: Page, count: int) -> None:
    """Request an export in JSON lines from the open dialog, and wait until it is written."""
    page.get_by_label("Format").select_option("jsonl")
    page.get_by_role("button", name=f"Export {count}", exact=True).click()
    progress = page.get_by_role("region", name="Progress")
    expect(progress).to_contain_text("All parts are written", timeout=WRITE_MS)


def read_part(page: Page) -> list[Any]:
    """Ask for links to the parts of the export that is shown, and read what the first leads to.

    It leads to the bucket: no page here asks another address, so it is read from outside.
    """
    page.get_by_role("button", name="Get the links").click()
    address = page.get_by_role("link", name="Part 1").get_attribute("href") or ""
    with urllib.request.urlopen(address, timeout=60) as answer:
        return [json.loads(line) for line in answer]


def find_last(console: Console) -> Any:
    return console.ask("GET", "/v1/exports?limit=1")["items"][0]


def test_exports_what_matches_and_downloads_it(open_page: OpenPage, console: Console) -> None:
    page = open_page(EXPLORE)
    open_dialog(page)
    expect(page.get_by_role("dialog")).to_contain_text(f"4 inferences of {MODEL} match.")
    page.get_by_label("Keep the parts for").select_option("P1D")
    page.get_by_label("Predictions").uncheck()
    request_lines(page, 4)
    export = find_last(console)
    assert (export["rows"], export["include"], export["downloads"]) == (4, ["metadata"], [])
    ids = {inference["inference_id"] for inference in read_part(page)}
    assert ids == {f"{MODEL}-{number}" for number in range(4)}
    assert len(find_last(console)["downloads"]) == 1
    page.get_by_role("link", name="← Exports").click()
    row = page.locator("tbody tr").first
    expect(row).to_contain_text(MODEL)
    expect(row).to_contain_text("frame_number < 4")
    expect(row).to_contain_text("done")


def test_a_dataset_is_written_by_the_copied_lines(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(EXPLORE)
    expect(page.locator(".tile")).to_have_count(4)
    page.on("request", lambda request: counted.append(request.url))
    counted: list[str] = []
    open_dialog(page)
    page.get_by_label("Format").select_option("coco")
    program = page.get_by_role("region", name="Python").locator("pre").text_content() or ""
    output = subprocess.check_output([sys.executable, "-c", program], text=True, cwd=tmp_path)
    assert "4 inferences" in output
    assert (tmp_path / "coco" / "annotations.json").is_file()
    expect(page.get_by_role("region", name="Command line")).to_contain_text("istore export")
    assert not [url for url in counted if url.endswith("/count")]  # the page knew the number


def test_parts_are_deleted_on_request(open_page: OpenPage) -> None:
    page = open_page(EXPLORE)
    open_dialog(page)
    request_lines(page, 4)
    page.get_by_role("button", name="Delete the parts …").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete the parts").click()
    progress = page.get_by_role("region", name="Progress")
    expect(progress).to_contain_text("cancelled", timeout=WRITE_MS)
    expect(page.get_by_role("button", name="Delete the parts …")).to_have_count(0)
    expect(page.get_by_role("button", name="Get the links")).to_have_count(0)
    expect(progress).not_to_contain_text("in the bucket")


def test_an_export_is_started_again(open_page: OpenPage, console: Console) -> None:
    page = open_page(EXPLORE)
    open_dialog(page)
    request_lines(page, 4)
    first = find_last(console)
    page.get_by_role("button", name="Start again …").click()
    page.get_by_role("dialog").get_by_role("button", name="Start again").click()
    progress = page.get_by_role("region", name="Progress")
    expect(page).not_to_have_url(re.compile(first["id"]))
    expect(progress).to_contain_text("done", timeout=WRITE_MS)
    again = find_last(console)
    assert again["id"] != first["id"]
    assert (again["filter"], again["rows"]) == (first["filter"], 4)


def test_the_selected_alone_are_exported(open_page: OpenPage, console: Console) -> None:
    page = open_page(EXPLORE)
    page.locator(".tile").first.focus()
    for key in ("x", "j", "x"):
        page.keyboard.press(key)
    page.get_by_role("button", name="Export these …").click()
    expect(page.get_by_role("dialog")).to_contain_text("2 inferences")
    request_lines(page, 2)
    ids = {inference["inference_id"] for inference in read_part(page)}
    assert ids == {f"{MODEL}-0", f"{MODEL}-1"}
    assert find_last(console)["filter"].startswith("uid IN (")


def test_a_refusal_is_explained(open_page: OpenPage) -> None:
    page = open_page(EXPLORE)
    open_dialog(page)
    too_long = {"detail": "expires_in: an export is kept for at most 7 days.", "status": 422}
    page.route("**/exports", lambda route: route.fulfill(status=422, json=too_long))
    page.get_by_role("button", name="Export 4").click()
    expect(page.get_by_role("alert")).to_contain_text("an export is kept for at most 7 days")
    expect(page.get_by_role("button", name="Export 4")).to_be_enabled()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Export …")).to_be_focused()


@LOOKS
def test_no_page_of_exports_has_a_serious_finding(
    open_page: OpenPage, console: Console, scheme: str, narrow: bool
) -> None:
    page = open_page(EXPLORE, scheme=scheme, narrow=narrow)
    if narrow:
        page.get_by_role("button", name="More", exact=True).click()
    open_dialog(page)
    check_page(page)
    request_lines(page, 4)
    page.get_by_role("button", name="Get the links").click()
    expect(page.get_by_role("link", name="Part 1")).to_be_visible()
    check_page(page)
    page.goto(f"{console.address}/console/#/list/exports")
    expect(page.locator("tbody tr").first).to_be_visible()
    check_page(page)
