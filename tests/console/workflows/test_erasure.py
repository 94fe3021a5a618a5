"""An erasure from its filter to its certificate, of which one byte is then changed in the store."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, expect

from tests.console.conftest import Console, OpenPage
from tests.console.test_certificates import expect_steps, trust
from tests.console.test_erasures import confirm, make_captures
from tests.servers.environment import PREFIX
from tests.servers.postgres import Postgres

MODEL = "proved-cameras"
ERASED, FORGED = '"inferences":2', '"inferences":3'


@contextmanager
def tampered(console: Console, number: int) -> Iterator[None]:
    """A certificate with one other byte in Postgres, where the API reads it."""
    postgres = Postgres(console.environment[f"{PREFIX}POSTGRES_DSN"])
    replace(postgres, number, ERASED, FORGED)
    try:
        yield
    finally:
        replace(postgres, number, FORGED, ERASED)


def replace(postgres: Postgres, number: int, old: str, new: str) -> None:
    """Replace a text that stands once in a certificate."""
    before = postgres.ask(f"SELECT signed FROM certificate WHERE number = {number}")
    assert before.count(old) == 1
    postgres.execute(
        f"UPDATE certificate SET signed = replace(signed, '{old}', '{new}') WHERE number = {number}"
    )


def erase(page: Page) -> None:
    """Erase the two that the filter finds, and follow the erasure to its end."""
    page.get_by_role("link", name="Erase …").click()
    estimate = page.get_by_role("region", name="What would go")
    expect(estimate.locator("dl").get_by_text("2", exact=True)).to_be_visible()
    expect(estimate.locator("li img")).to_have_count(2)
    button = page.get_by_role("button", name="Erase 2")
    expect(button).to_be_disabled()
    page.get_by_label("the number of what goes").fill("3")
    expect(button).to_be_disabled()
    confirm(page, 2)
    progress = page.get_by_role("region", name="Progress")
    expect(progress).to_contain_text("certified", timeout=180_000)
    expect(progress).to_contain_text("2 of 2 inferences erased")


def open_again(page: Page, number: int) -> None:
    """Go to the list and back, so that the certificate is read again."""
    page.get_by_role("link", name="← Certificates").click()
    page.get_by_role("link", name=str(number), exact=True).click()


def test_what_was_erased_is_proved_and_one_byte_makes_it_invalid(
    open_page: OpenPage, console: Console
) -> None:
    console.produce(*make_captures(MODEL, 0, 5))
    page = open_page(f"#/m/{MODEL}?f=frame_number%20%3C%202")
    erase(page)
    assert console.count(MODEL) == 3
    page.get_by_role("link", name=re.compile(r"^Certificate \d+$")).click()
    trust(page)
    status = page.get_by_role("status").first
    expect(status).to_have_text(re.compile(r"^Certificate \d+ is valid\.$"))
    number = int(re.findall(r"\d+", status.text_content() or "")[0])
    expect_steps(page)
    with tampered(console, number):
        open_again(page, number)
        expect(status).to_contain_text(f"Certificate {number} is invalid: ")
        expect(status).to_contain_text("never signed these")
        expect_steps(page, Signature="failed", Hash="failed", List="failed")
    open_again(page, number)
    expect(status).to_have_text(f"Certificate {number} is valid.")
    page.goto(f"{console.address}/console/#/list/erasures")
    expect(page.locator("tbody tr").first).to_contain_text(MODEL)
