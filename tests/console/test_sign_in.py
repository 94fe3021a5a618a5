"""Sign-in to the console at an issuer, which returns to the same link."""

import asyncio
import json
from collections.abc import Iterator
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.integration.api.access.oidc_issuer import (
    AUDIENCE,
    CLIENT,
    CLIENT_SECRET,
    OidcIssuer,
    make_jwk,
    make_rsa_key,
)

from .conftest import Console, serve_guarded
from .content import STREET

_LINK = f"#/m/{STREET}?f=frame_number%20%3C%205"


@pytest.fixture
def issuer() -> Iterator[OidcIssuer]:
    """An issuer in its own thread, beside the browser."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    key, server = make_rsa_key(), OidcIssuer()
    server.keys, server.signer = [make_jwk("rsa", key)], (key, "rsa")
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
    yield server
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def guarded(
    console: Console, issuer: OidcIssuer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Console]:
    """The same store behind an api with the issuer in its settings."""
    settings = {
        "OIDC_ISSUER": issuer.url,
        "OIDC_AUDIENCE": AUDIENCE,
        "OIDC_ROLES": json.dumps({"analysts": [{"role": "analyst"}]}),
        "OIDC_CLIENT_ID": CLIENT,
        "OIDC_CLIENT_SECRET": CLIENT_SECRET,
    }
    with serve_guarded(console, tmp_path_factory.mktemp("issuer"), **settings) as guarded:
        yield guarded


@pytest.fixture
def page(browser: Browser, guarded: Console) -> Iterator[Page]:
    """A page that may also send requests to the issuer."""
    context = browser.new_context()
    context.set_default_timeout(60_000)
    signing_in = context.new_page()
    signing_in.goto(f"{guarded.address}/console/{_LINK}")
    yield signing_in
    context.close()


def test_signing_in_at_the_issuer(page: Page, issuer: OidcIssuer) -> None:
    sign_in = page.get_by_role("button", name="Sign in with 127.0.0.1")
    issuer.id_claims = {"nonce": "of another attempt"}
    sign_in.click()
    expect(page.get_by_role("status")).to_contain_text("Signing in did not work")
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
