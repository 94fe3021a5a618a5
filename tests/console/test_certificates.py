"""Certificates are verified in the browser with the reader's key; one byte makes them invalid."""

import json
import re
from base64 import b64decode
from functools import partial
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from playwright.sync_api import Page, Route, expect

from inference_store.erasure.log import new_key
from tests.servers.waiting import wait_until

from .conftest import SIGNING, Console, OpenPage
from .test_accessibility import LOOKS, check_page
from .test_erasures import make_captures

LIST = "#/list/certificates"
MODEL = "certified-cameras"
STEPS = ["Form", "Number", "Signature", "Predecessor", "Hash", "List"]


def is_certified(console: Console, erasure: str) -> bool:
    return console.ask("GET", erasure)["certificate"] is not None


@pytest.fixture(scope="module")
def certificate(console: Console) -> int:
    """The number of the certificate of an erasure, after two other erasures."""
    console.produce(*make_captures(MODEL, 0, 3))
    for number in range(3):
        path = f"/v1/models/{MODEL}/inferences/{MODEL}-{number}"
        erasure = f"/v1/erasures/{console.ask('DELETE', path)['id']}"
        certified = partial(is_certified, console, erasure)
        wait_until(certified, seconds=180, what="the certificate")
    return int(console.ask("GET", "/v1/certificates")["items"][0]["number"])


def trust(page: Page, text: str = SIGNING.public.pem) -> None:
    page.get_by_label("Trusted key").fill(text)


def expect_steps(page: Page, **outcomes: str) -> None:
    """Expect that each step passed, except those with another outcome."""
    for title in STEPS:
        outcome = outcomes.get(title, "passed")
        step = page.locator(f"[data-step={title}]")
        expect(step).to_contain_text(f"{title}: {outcome}")


def change(page: Page, number: int, old: bytes, new: bytes) -> None:
    """Change the api's answer about a document."""

    def answer(route: Route) -> None:
        response = route.fetch()
        body = response.body()
        assert old in body
        route.fulfill(response=response, body=body.replace(old, new, 1))

    page.route(f"**/v1/certificates/{number}", answer)


def test_verifies_with_the_readers_key(
    open_page: OpenPage, certificate: int, tmp_path: Path
) -> None:
    page = open_page(LIST)
    page.get_by_role("link", name=str(certificate), exact=True).click()
    status = page.get_by_role("status").first
    expect(page.get_by_text("1 inference and")).to_be_visible()
    for form in (SIGNING.public.pem, SIGNING.public.text, SIGNING.public.id):
        trust(page, "")
        expect(status).to_have_text("Not verified yet: enter the key that you trust.")
        expect_steps(page, Signature="not checked")
        trust(page, form)
        expect(status).to_have_text(f"Certificate {certificate} is valid.")
        expect_steps(page)
    trust(page, "")
    expect_steps(page, Signature="not checked")
    (tmp_path / "key.pem").write_text(SIGNING.public.pem)
    page.get_by_label("File with the key").set_input_files(tmp_path / "key.pem")
    expect(status).to_have_text(f"Certificate {certificate} is valid.")


@LOOKS
def test_its_page_has_no_serious_finding(
    open_page: OpenPage, certificate: int, scheme: str, narrow: bool
) -> None:
    page = open_page(f"{LIST}/{certificate}", scheme=scheme, narrow=narrow)
    for key, outcome in ((SIGNING, "passed"), (new_key(), "failed")):
        trust(page, key.public.id)
        expect_steps(page, Signature=outcome)
        check_page(page)


def test_foreign_key_proves_nothing(open_page: OpenPage, certificate: int) -> None:
    page = open_page(f"{LIST}/{certificate}")
    trust(page, new_key().public.pem)
    expect_steps(page, Signature="failed")
    expect(page.get_by_role("status").first).to_contain_text("which you do not trust")
    trust(page, "hunter2")
    expect(page.get_by_text("“hunter2” is neither a public key")).to_be_visible()
    trust(page, SIGNING.pem)
    expect(page.get_by_text("This is a private key.")).to_be_visible()


def test_downloads_are_the_signed_bytes(
    open_page: OpenPage, certificate: int, console: Console, tmp_path: Path
) -> None:
    page = open_page(f"{LIST}/{certificate}")
    for name in ("Download", "Download the signed bytes"):
        with page.expect_download() as download:
            page.get_by_role("button", name=name, exact=True).click()
        download.value.save_as(tmp_path / download.value.suggested_filename)
    envelope = json.loads((tmp_path / f"{certificate:010d}.json").read_bytes())
    assert envelope == console.ask("GET", f"/v1/certificates/{certificate}")
    key = Ed25519PublicKey.from_public_bytes(SIGNING.public.raw)
    signed = (tmp_path / f"{certificate:010d}.signed").read_bytes()
    key.verify(b64decode(envelope["signature"]), signed)


def test_verifies_the_whole_chain(open_page: OpenPage, certificate: int) -> None:
    page = open_page(LIST)
    button = page.get_by_role("button", name="Verify the chain")
    expect(button).to_be_disabled()
    trust(page)
    button.click()
    expect(page.get_by_text("The chain is valid: ")).to_contain_text(
        f"from number 1 to {certificate}"
    )
    change(page, certificate - 1, b'"inferences":1', b'"inferences":2')
    button.click()
    expect(page.get_by_text("The chain is invalid: ")).to_be_visible()
    fault = page.get_by_role("listitem").filter(has_text=f"Number {certificate - 1}")
    expect(fault.first).to_contain_text("The signature is not of key")
    trust(page, new_key().public.id)
    page.unroute(re.compile(".*"))
    button.click()
    expect(page.get_by_text("which is none that you trust")).to_be_visible()
