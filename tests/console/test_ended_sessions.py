"""A page at rest ends by itself when its session is refused: it says so, and shows nothing old."""

import time
from typing import Any

import pytest
from playwright.sync_api import Page, Request, expect

from inference_store.api.authentication import WATCHED_SECONDS

from .conftest import Console, OpenPage
from .content import STREET
from .test_access import enter, sign_out_elsewhere
from .watched_page import AskedRequests

PAGE = f"#/m/{STREET}?f=frame_number%20%3C%205"
LOOK = "/v1/me"
PAUSE = 1.2
"""Seconds between two looks of a page."""
LOOKS = 9
"""So many of three windows take three pauses, unless all windows look at once each time: some times
they do, on a busy machine."""


def make_key(console: Console) -> Any:
    body = {"name": "leaving", "grants": [{"role": "reader"}]}
    return console.ask("POST", "/v1/keys", body)


def is_look(request: Request) -> bool:
    return request.url.endswith(LOOK)


def turn(page: Page, *, hidden: bool) -> None:
    """Hide a page, or show it again, as another tab before it would."""
    page.evaluate(
        "hidden => {"
        " Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def began_at(look: Request) -> float:
    """When the browser sent a look that was answered, in seconds since 1970."""
    return look.timing["startTime"] / 1000


def wait_ended(page: Page) -> None:
    """Wait until a page says that its session is over, and see that it shows nothing else."""
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("You are signed out")
    expect(alert).to_contain_text("ask the administrator of the store")
    expect(page.get_by_label("API key")).to_be_visible()
    expect(page.locator(".tile")).to_have_count(0)
    expect(page.locator("body")).not_to_contain_text(STREET)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_page_at_rest_says_that_its_key_was_revoked(
    open_page: OpenPage, console: Console, guarded: Console, is_elsewhere: bool
) -> None:
    """Also if another process of the api revoked it: its key is looked up again for such a page."""
    key = make_key(guarded)
    page = open_page(PAGE, of=guarded)
    enter(page, key["key"])
    expect(page.locator(".tile")).to_have_count(5)
    looks: list[Request] = []
    page.on("requestfinished", lambda request: looks.append(request) if is_look(request) else None)
    (console if is_elsewhere else guarded).ask("POST", f"/v1/keys/{key['id']}/revoke")
    known_until = time.time() + WATCHED_SECONDS
    wait_ended(page)
    later = [look.response() for look in looks if began_at(look) > known_until]
    statuses = {answer and answer.status for answer in later}
    assert statuses <= {401}, "the key was not looked up again"
    # the same page goes on with another key
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
    looks = [first.context.wait_for_event("requestfinished", is_look) for _ in range(LOOKS)]
    times = [began_at(look) for look in looks]
    assert max(times) - min(times) > 3 * PAUSE
    sign_out_elsewhere(first, guarded)
    for page in (first, *others):
        wait_ended(page)


def test_a_hidden_page_asks_nothing_and_looks_when_it_is_shown(
    open_page: OpenPage, guarded: Console
) -> None:
    page = open_page(PAGE, of=guarded)
    page.clock.install()
    looks = AskedRequests(page, LOOK)
    page.reload()
    enter(page, make_key(guarded)["key"])
    expect(page.locator(".tile")).to_have_count(5)
    page.wait_for_event("requestfinished", is_look)
    turn(page, hidden=True)
    looks.wait_answered()
    before = len(looks.urls)
    sign_out_elsewhere(page, guarded)
    page.clock.fast_forward("01:00")
    expect(page.locator(".tile")).to_have_count(5)
    assert len(looks.urls) == before
    turn(page, hidden=False)
    wait_ended(page)
