"""A page at rest ends by itself when its session is refused: it says so, and shows nothing old."""

import time
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

from .conftest import Console, OpenPage
from .content import STREET
from .test_access import enter, sign_out_elsewhere

PAGE = f"#/m/{STREET}?f=frame_number%20%3C%205"
PAUSE = 1.2
"""Seconds between two looks of a page."""
BUSY = 3.0
"""Seconds that a busy machine may take on top."""


def make_key(console: Console) -> Any:
    """Make a key that can read."""
    body = {"name": "leaving", "grants": [{"role": "reader"}]}
    return console.ask("POST", "/v1/keys", body)


def is_look(request: Request) -> bool:
    """Whether a page asks if its session goes on."""
    return request.url.endswith("/v1/me")


def turn(page: Page, *, hidden: bool) -> None:
    """Hide a page, or show it again, as another tab before it would."""
    page.evaluate(
        "hidden => {"
        " Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def wait_ended(page: Page, *, seconds: float = 30) -> None:
    """Wait until a page says that its session is over, and see that it shows nothing else."""
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("You are signed out", timeout=seconds * 1000)
    expect(alert).to_contain_text("ask the administrator of the store")
    expect(page.get_by_label("API key")).to_be_visible()
    expect(page.locator(".tile")).to_have_count(0)
    expect(page.locator("body")).not_to_contain_text(STREET)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_page_at_rest_says_that_its_key_was_revoked(
    open_page: OpenPage, console: Console, guarded: Console, is_elsewhere: bool
) -> None:
    """Also if another process of the api revoked it: it is looked up anew for such a page."""
    key = make_key(guarded)
    page = open_page(PAGE, of=guarded)
    enter(page, key["key"])
    expect(page.locator(".tile")).to_have_count(5)
    (console if is_elsewhere else guarded).ask("POST", f"/v1/keys/{key['id']}/revoke")
    revoked = time.monotonic()
    wait_ended(page, seconds=PAUSE + BUSY)
    print(f"the page ended {time.monotonic() - revoked:.1f} s after the key was revoked")


def test_the_same_page_goes_on_with_another_key(open_page: OpenPage, guarded: Console) -> None:
    key = make_key(guarded)
    page = open_page(PAGE, of=guarded)
    enter(page, key["key"])
    expect(page.locator(".tile")).to_have_count(5)
    guarded.ask("POST", f"/v1/keys/{key['id']}/revoke")
    wait_ended(page)
    enter(page, make_key(guarded)["key"])
    expect(page.locator(".tile")).to_have_count(5)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_one_of_several_windows_looks_for_all(open_page: OpenPage, guarded: Console) -> None:
    first = open_page(PAGE, of=guarded)
    enter(first, make_key(guarded)["key"])
    expect(first.locator(".tile")).to_have_count(5)
    others = [first.context.new_page() for _ in range(2)]
    for page in others:
        page.goto(first.url)
        expect(page.locator(".tile")).to_have_count(5)
    began = time.monotonic()
    for _ in range(4):
        first.context.wait_for_event("request", is_look)
    assert time.monotonic() - began > 2 * PAUSE
    sign_out_elsewhere(first, guarded)
    for page in (first, *others):
        wait_ended(page)


def test_a_hidden_page_asks_nothing_and_looks_when_it_is_shown(
    open_page: OpenPage, guarded: Console
) -> None:
    page = open_page(PAGE, of=guarded)
    page.clock.install()
    page.reload()
    enter(page, make_key(guarded)["key"])
    expect(page.locator(".tile")).to_have_count(5)
    page.wait_for_event("request", is_look)
    turn(page, hidden=True)
    looks: list[str] = []
    page.on("request", lambda request: looks.append(request.url))
    sign_out_elsewhere(page, guarded)
    page.clock.fast_forward("01:00")
    expect(page.locator(".tile")).to_have_count(5)
    assert not looks
    turn(page, hidden=False)
    wait_ended(page)
