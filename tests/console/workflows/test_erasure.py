"""From an erasure to its proof, and from a poison event to its inference."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, expect

from tests.console.conftest import Console, OpenPage, run_beside
from tests.console.test_erasures import confirm, expect_steps, make_captures, trust
from tests.console.watched_page import open_acts
from tests.producer import Capture, Producer
from tests.servers.environment import PREFIX
from tests.servers.postgres import Postgres
from tests.servers.waiting import wait_until

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
    open_acts(page)
    page.get_by_role("link", name="Erase what matches …").click()
    estimate = page.get_by_role("region", name="What would be erased")
    expect(estimate.locator("dl").get_by_text("2", exact=True)).to_be_visible()
    expect(estimate.locator("li img")).to_have_count(2)
    button = page.get_by_role("button", name="Erase 2")
    expect(button).to_be_disabled()
    page.get_by_label("to confirm").fill("3")
    expect(button).to_be_disabled()
    confirm(page, 2)
    progress = page.get_by_role("region", name="Progress")
    expect(progress).to_contain_text("certified", timeout=180_000)
    expect(progress).to_contain_text("2 of 2 inferences erased")


def open_again(page: Page, number: int) -> None:
    """Go to the list and back, so that the certificate is read again."""
    page.get_by_role("link", name="← Certificates").click()
    page.get_by_role("link", name=str(number), exact=True).click()


def test_an_erasure_is_proved_and_one_byte_breaks_it(open_page: OpenPage, console: Console) -> None:
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


POISONED = "poisoned-cameras"
COUNTED = ("Offsets read", "Stored", "Dead", "Parked")


def publish_poison(console: Console, model: str, number: int = 0) -> Capture:
    """Publish an event whose response is not in the bucket; wait until it is a dead letter."""
    [capture] = make_captures(model, number, 1)
    run_beside(_publish(console.environment, capture))
    wait_until(lambda: bool(find_letters(console, model)), seconds=180, what="a dead letter")
    return capture


def repair(console: Console, capture: Capture) -> None:
    run_beside(_make_producer(console.environment).put(capture, "response"))


def find_letters(console: Console, model: str) -> list[int]:
    items = console.ask("GET", "/v1/dead-letters?reason=blob_missing&limit=1000")["items"]
    return [item["id"] for item in items if item["model_id"] == model]


async def _publish(environment: dict[str, str], capture: Capture) -> None:
    async with _make_producer(environment) as producer:
        await producer.put(capture, "data", "metadata")
        await producer.publish(capture.event)


def _make_producer(environment: dict[str, str]) -> Producer:
    return Producer(environment, environment[f"{PREFIX}KAFKA_TOPIC"])


def read_accounting(open_page: OpenPage, console: Console) -> Counter[str]:
    """What the page of the accounting counts in the one partition; its books must close."""
    # On a busy machine a producer may count as silent until its next report.
    wait_until(
        lambda: console.ask("GET", "/v1/accounting")["closes"], seconds=180, what="books to close"
    )
    page = open_page("#/list/accounting")
    expect(page.get_by_role("status")).to_contain_text("The books close.")
    table = page.get_by_role("region", name="By partition").get_by_role("table")
    titles = table.locator("th").all_text_contents()
    numbers = table.locator("tbody tr td").all_text_contents()
    cells = dict(zip(titles, numbers, strict=True))
    return Counter({name: int(cells.get(name, "0").replace(",", "")) for name in COUNTED})


def open_letter(page: Page) -> None:
    """Go from the list to the dead letter of the model."""
    letter = page.locator("tbody tr", has_text=POISONED)
    expect(letter).to_contain_text("blob_missing")
    letter.get_by_role("link").click()
    expect(page.get_by_text("Waiting for a decision")).to_be_visible()
    expect(page.get_by_text("did not come within")).to_be_visible()


def redrive(page: Page) -> None:
    page.get_by_role("button", name="Redrive …").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()


def test_a_poison_event_is_redriven_after_a_repair(open_page: OpenPage, console: Console) -> None:
    before = read_accounting(open_page, console)
    capture = publish_poison(console, POISONED)
    assert read_accounting(open_page, console) - before == {"Offsets read": 1, "Dead": 1}
    page = open_page("#/list/dead-letters")
    open_letter(page)
    repair(console, capture)
    redrive(page)
    expect(page.get_by_text("A redrive indexed it.")).to_be_visible(timeout=180_000)
    after = read_accounting(open_page, console)
    assert after - before == {"Offsets read": 1, "Stored": 1}
    assert before - after == {}
    assert console.find_ids(POISONED) == [capture.inference_id]
