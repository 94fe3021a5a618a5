"""Access control: sign-in and sign-out, ended sessions, rights to see pictures."""

import os
import re
import subprocess
import sys
import urllib.request
from typing import Any

from playwright.sync_api import Page, expect

from inference_store.api.authentication import COOKIE, HEADER
from tests.settings import TOKEN

from .conftest import Console, OpenPage
from .content import STREET
from .watched_page import allow_copying


def enter(page: Page, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in", exact=True).click()


def find_cookie(page: Page) -> Any:
    return next(cookie for cookie in page.context.cookies() if cookie["name"] == COOKIE)


def sign_out_elsewhere(page: Page, console: Console) -> None:
    """End the session of a page by a separate request."""
    cookie = f"{COOKIE}={find_cookie(page)['value']}"
    headers = {"Cookie": cookie, HEADER: "1", "Sec-Fetch-Site": "same-origin"}
    request = urllib.request.Request(
        f"{console.address}/v1/session", headers=headers, method="DELETE"
    )
    urllib.request.urlopen(request, timeout=60).close()


def test_a_key_is_sent_once_and_a_cookie_stays(open_page: OpenPage, guarded: Console) -> None:
    page = open_page(f"#/m/{STREET}?f=frame_number%20%3C%205", of=guarded)
    sent_keys: list[str] = []
    page.on("request", lambda request: sent_keys.append(request.headers.get("authorization", "")))
    enter(page, "a-wrong-key")
    expect(page.get_by_role("status")).to_contain_text("The key is unknown")
    enter(page, TOKEN)
    expect(page.locator(".tile")).to_have_count(5)
    page.reload()
    expect(page.locator(".tile")).to_have_count(5)
    assert [text for text in sent_keys if text] == ["Bearer a-wrong-key", f"Bearer {TOKEN}"]
    stored = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
    cookie = find_cookie(page)
    assert cookie["httpOnly"]
    assert cookie["secure"]
    assert cookie["sameSite"] == "Lax"
    assert TOKEN not in stored
    assert cookie["value"] not in stored


def test_the_link_stays_after_signing_out_and_after_an_ended_session(
    open_page: OpenPage, guarded: Console
) -> None:
    page = open_page(f"#/m/{STREET}?f=frame_number%20%3C%205", of=guarded)
    enter(page, TOKEN)
    expect(page.locator(".tile")).to_have_count(5)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    expect(page.locator(".tile")).to_have_count(0)
    assert COOKIE not in [cookie["name"] for cookie in page.context.cookies()]
    enter(page, TOKEN)
    expect(page.locator(".tile")).to_have_count(5)
    sign_out_elsewhere(page, guarded)
    expect(page.get_by_role("alert")).to_contain_text("Your session has ended")
    enter(page, TOKEN)
    expect(page.locator(".tile")).to_have_count(5)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_warns_that_sign_in_requires_https(open_page: OpenPage, guarded: Console) -> None:
    page = open_page(of=guarded)
    expect(page.get_by_label("API key")).to_be_visible()
    expect(page.get_by_role("note")).to_have_count(0)
    page.add_init_script("Object.defineProperty(window, 'isSecureContext', { value: false })")
    page.reload()
    expect(page.get_by_role("note")).to_contain_text("https://")


def test_requests_no_pictures_without_the_right(open_page: OpenPage, guarded: Console) -> None:
    body = {"name": "reader", "grants": [{"role": "reader"}]}
    key = guarded.ask("POST", "/v1/keys", body)["key"]
    page = open_page(f"#/m/{STREET}?f=frame_number%20%3C%203", of=guarded)
    refused: list[str] = []
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("response", lambda answer: refused.append(answer.url) if answer.status == 403 else None)
    enter(page, key)
    expect(page.get_by_text("You are not allowed to see inputs")).to_have_count(3)
    page.locator(".tile").first.click()
    expect(page.locator(".large")).to_contain_text("You are not allowed to see inputs")
    expect(page.locator("ol button").first).to_be_visible()
    assert not [url for url in requested if url.endswith(("/thumbnails", "/data"))]
    assert not refused


def test_copied_commands_take_the_key_from_the_environment(
    open_page: OpenPage, guarded: Console
) -> None:
    page = open_page(f"#/m/{STREET}?f=frame_number%20%3C%205&s=frame_number", of=guarded)
    enter(page, TOKEN)
    expect(page.locator(".tile")).to_have_count(5)
    allow_copying(page)
    page.get_by_text("Copy", exact=True).click()
    for kind, command in (("curl", ["sh", "-c"]), ("Python", [sys.executable, "-c"])):
        page.get_by_role("button", name=kind).click()
        expect(page.get_by_role("status").filter(has_text=f"{kind} copied")).to_be_attached()
        program = page.evaluate("navigator.clipboard.readText()")
        assert TOKEN not in program
        environment = os.environ | {"INFERENCE_STORE_KEY": TOKEN}
        output = subprocess.check_output([*command, program], text=True, env=environment)
        assert re.findall(rf"{STREET}-\d{{4}}", output) == page.locator(".id").all_text_contents()
