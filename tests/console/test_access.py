"""Access control: signing in and out, keys, and what is shown to whom."""

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from inference_store.api.authentication import COOKIE, HEADER
from tests.integration.api.access import oidc_issuer
from tests.servers.waiting import wait_until
from tests.settings import TOKEN

from .conftest import Console, OpenPage, serve_guarded
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


def test_the_link_stays_after_a_session_has_ended(open_page: OpenPage, guarded: Console) -> None:
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
    expect(page.get_by_text("You don't have permission to see inputs")).to_have_count(3)
    page.locator(".tile").first.click()
    expect(page.locator(".large")).to_contain_text("You don't have permission to see inputs")
    expect(page.locator("ol button").first).to_be_visible()
    assert not [url for url in requested if url.endswith(("/thumbnails", "/data"))]
    assert not refused


def test_copied_commands_read_the_key_of_the_shell(open_page: OpenPage, guarded: Console) -> None:
    page = open_page(f"#/m/{STREET}?f=frame_number%20%3C%205&s=frame_number", of=guarded)
    enter(page, TOKEN)
    expect(page.locator(".tile")).to_have_count(5)
    allow_copying(page)
    kinds = {"curl": ["sh", "-c"], "Python": [sys.executable, "-c"]}
    for kind, command in kinds.items():
        page.get_by_text("Copy", exact=True).click()
        page.get_by_role("button", name=kind, exact=True).click()
        expect(page.get_by_role("status").filter(has_text=f"{kind} copied")).to_be_attached()
        program = page.evaluate("navigator.clipboard.readText()")
        assert TOKEN not in program
        environment = os.environ | {"INFERENCE_STORE_KEY": TOKEN}
        output = subprocess.check_output([*command, program], text=True, env=environment)
        assert re.findall(rf"{STREET}-\d{{4}}", output) == page.locator(".id").all_text_contents()
        page.reload()
        expect(page.locator(".tile")).to_have_count(5)


_LINK = f"#/m/{STREET}?f=frame_number%20%3C%205"


@pytest.fixture
def issuer() -> Iterator[oidc_issuer.OidcIssuer]:
    """An issuer in its own thread, beside the browser."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    key, server = oidc_issuer.make_rsa_key(), oidc_issuer.OidcIssuer()
    server.keys, server.signer = [oidc_issuer.make_jwk("rsa", key)], (key, "rsa")
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def with_issuer(
    console: Console, issuer: oidc_issuer.OidcIssuer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Console]:
    """The same store behind an api with the issuer in its settings."""
    settings = {
        "OIDC_ISSUER": issuer.url,
        "OIDC_AUDIENCE": oidc_issuer.AUDIENCE,
        "OIDC_ROLES": json.dumps({"analysts": [{"role": "analyst"}]}),
        "OIDC_CLIENT_ID": oidc_issuer.CLIENT,
        "OIDC_CLIENT_SECRET": oidc_issuer.CLIENT_SECRET,
    }
    with serve_guarded(console, tmp_path_factory.mktemp("issuer"), **settings) as served:
        yield served


@pytest.fixture
def page(browser: Browser, with_issuer: Console) -> Iterator[Page]:
    """A page that may also send requests to the issuer."""
    context = browser.new_context()
    context.set_default_timeout(60_000)
    signing_in = context.new_page()
    signing_in.goto(f"{with_issuer.address}/console/{_LINK}")
    yield signing_in
    context.close()


def test_signing_in_at_the_issuer(page: Page, issuer: oidc_issuer.OidcIssuer) -> None:
    sign_in = page.get_by_role("button", name="Sign in with 127.0.0.1")
    issuer.id_claims = {"nonce": "of another attempt"}
    sign_in.click()
    expect(page.get_by_role("status")).to_contain_text("Sign-in failed")
    assert page.url.endswith(f"/console/{_LINK}")
    issuer.id_claims = {}
    sign_in.click()
    expect(page.locator(".tile")).to_have_count(5)
    assert page.url.endswith(f"/console/{_LINK}")
    expect(page.get_by_text("ada", exact=True)).to_be_visible()
    page.reload()
    expect(page.locator(".tile")).to_have_count(5)
    page.get_by_role("button", name="Sign out").click()
    expect(sign_in).to_be_visible()


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
    page.get_by_role("button", name="Create a key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("<b>bold</b> dashboard")
    dialog.get_by_role("combobox", name="Expires").select_option("30")
    dialog.get_by_role("combobox", name="Model").fill(STREET)
    expect(dialog.get_by_label("What the role may do")).to_contain_text("See models")
    dialog.get_by_role("button", name="Create the key").click()
    key = dialog.get_by_label("The key", exact=True).input_value()
    assert key.startswith("isk_")
    assert may_read(guarded, key)
    allow_copying(page)
    dialog.get_by_role("button", name="Copy").click()
    expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == key
    dialog.get_by_role("button", name="Done").click()
    row = page.locator("tbody tr").filter(has_text="<b>bold</b> dashboard")
    expect(row).to_contain_text(f"reader of model {STREET}")
    expect(row).to_contain_text("works")
    assert key not in page.content()
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke", exact=True).click()
    expect(row).to_contain_text("revoked")
    wait_until(lambda: not may_read(guarded, key), seconds=180, what="the key to end")


def rotate(page: Page, name: str, when: str) -> str:
    """Rotate a key, and return its new text."""
    page.get_by_role("button", name=f"Rotate {name}").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("The old secret stops working").select_option(label=when)
    dialog.get_by_role("button", name="Rotate the key").click()
    text = dialog.get_by_label("The key", exact=True).input_value()
    dialog.get_by_role("button", name="Done").click()
    expect(dialog).to_have_count(0)
    assert text not in page.content()
    return text


def test_a_rotated_key_is_shown_once_and_replaces_it(open_page: OpenPage, guarded: Console) -> None:
    grants = [{"role": "reader"}]
    first = guarded.ask("POST", "/v1/keys", {"name": "turning", "grants": grants})["key"]
    page = open_keys(open_page, guarded, TOKEN)
    second = rotate(page, "turning", "in a day")
    row = page.locator("tbody tr").filter(has_text="turning")
    expect(row).to_contain_text("old secret until")
    assert may_read(guarded, first)
    assert may_read(guarded, second)
    third = rotate(page, "turning", "at once")
    expect(row).not_to_contain_text("old secret until")
    assert may_read(guarded, third)
    wait_until(lambda: not may_read(guarded, second), seconds=180, what="the text to end")
    assert not may_read(guarded, first)


def test_own_key_cannot_be_rotated_at_once(open_page: OpenPage, guarded: Console) -> None:
    body = {"name": "my own", "grants": [{"role": "owner"}]}
    page = open_keys(open_page, guarded, guarded.ask("POST", "/v1/keys", body)["key"])
    page.get_by_role("button", name="Rotate my own").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("You are signed in with this key")
    expect(dialog.locator("option", has_text="at once")).to_have_count(0)
    page.keyboard.press("Escape")
    assert may_read(guarded, rotate(page, "my own", "in an hour"))
    page.get_by_role("button", name="Reload").click()
    expect(page.locator("tbody tr").filter(has_text="my own")).to_contain_text("works")


def test_rights_can_be_chosen_and_refusals_are_shown(open_page: OpenPage, guarded: Console) -> None:
    page = open_keys(open_page, guarded, TOKEN)
    page.get_by_role("button", name="Create a key").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name").fill("two grants")
    dialog.get_by_role("combobox", name="Role").select_option("chosen")
    dialog.get_by_role("combobox", name="Over").select_option("everything")
    dialog.get_by_role("checkbox", name="export").check()
    dialog.get_by_role("button", name="Add a grant").click()
    second = dialog.get_by_role("group", name="Grant 2")
    second.get_by_role("combobox", name="Over").select_option("project")
    dialog.get_by_role("button", name="Create the key").click()
    expect(dialog.get_by_role("alert")).to_be_visible()
    second.get_by_role("textbox", name="Project").fill("building-7")
    dialog.get_by_role("button", name="Create the key").click()
    dialog.get_by_role("button", name="Done").click()
    row = page.locator("tbody tr").filter(has_text="two grants")
    expect(row).to_contain_text("read, export of everything; reader of project building-7")


def make_key(console: Console, grants: Sequence[dict[str, Any]]) -> str:
    body = {"name": "one of a test", "grants": grants}
    return str(console.ask("POST", "/v1/keys", body)["key"])


def open_with(open_page: OpenPage, console: Console, fragment: str, key: str) -> Page:
    page = open_page(fragment, of=console)
    enter(page, key)
    return page


def test_a_reader_is_offered_what_readers_may_do(open_page: OpenPage, guarded: Console) -> None:
    key = make_key(guarded, [{"role": "reader"}])
    page = open_with(open_page, guarded, "#/list/erasures", key)
    menu = page.get_by_role("navigation", name="Console")
    for title in ("Certificates", "Erasures"):
        expect(menu.get_by_role("link", name=title)).to_be_visible()
    for title in ("Keys", "Audit", "Reconcile", "Exports"):
        expect(menu.get_by_role("link", name=title, exact=True)).to_have_count(0)
    expect(page.get_by_role("main").get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_role("link", name="Erase …")).to_have_count(0)
    page.goto(f"{guarded.address}/console/#/m/{STREET}?f=frame_number%20%3C%206&s=frame_number")
    expect(page.locator(".tile")).to_have_count(6)
    expect(page.get_by_label("Erase or hold")).to_have_count(0)
    page.locator(".tile").first.focus()
    page.keyboard.press("x")
    bar = page.get_by_role("region", name="Selection")
    expect(bar).to_contain_text("1 selected")
    expect(page.get_by_role("button", name="Copy IDs")).to_be_visible()
    expect(page.get_by_role("link", name=re.compile("these"))).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile("Export"))).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{STREET}-0000")
    expect(page.get_by_text("data_source").first).to_be_visible()
    expect(page.get_by_role("button", name="Edit …")).to_have_count(0)


def test_explains_a_missing_right(open_page: OpenPage, guarded: Console) -> None:
    grants: list[dict[str, Any]] = [{"role": "reader"}, {"rights": ["delete"], "model_id": "pets"}]
    fragment = f"#/list/erasures/new?of=model%3A{STREET}&f=TRUE"
    page = open_with(open_page, guarded, fragment, make_key(guarded, grants))
    expect(page.get_by_role("alert")).to_contain_text("You need the right “delete”")
    expect(page.get_by_role("button", name="Erase", exact=False)).to_have_count(0)
