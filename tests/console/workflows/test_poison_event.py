"""A poison event from its dead letter to the index, and what the accounting says meanwhile."""

from collections import Counter

from playwright.sync_api import Page, expect

from tests.console.conftest import Console, OpenPage, run_beside
from tests.console.test_erasures import make_captures
from tests.producer import Capture, Producer
from tests.servers.environment import PREFIX
from tests.servers.waiting import wait_until

MODEL = "poisoned-cameras"
COUNTED = ("Offsets read", "stored", "dead", "parked")


def publish_poison(console: Console, model: str, number: int = 0) -> Capture:
    """Publish an event whose response is not in the bucket; wait until it is a dead letter."""
    [capture] = make_captures(model, number, 1)
    run_beside(_publish(console.environment, capture))
    wait_until(lambda: bool(find_letters(console, model)), seconds=180, what="a dead letter")
    return capture


def repair(console: Console, capture: Capture) -> None:
    run_beside(_put_response(console.environment, capture))


def find_letters(console: Console, model: str) -> list[int]:
    items = console.ask("GET", "/v1/dead-letters?reason=blob_missing&limit=1000")["items"]
    return [item["id"] for item in items if item["model_id"] == model]


async def _publish(environment: dict[str, str], capture: Capture) -> None:
    async with _make_producer(environment) as producer:
        await producer.put(capture, "data", "metadata")
        await producer.publish(capture.event)


async def _put_response(environment: dict[str, str], capture: Capture) -> None:
    await _make_producer(environment).put(capture, "response")


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
    letter = page.locator("tbody tr", has_text=MODEL)
    expect(letter).to_contain_text("blob_missing")
    letter.get_by_role("link").click()
    expect(page.get_by_text("Somebody has to decide")).to_be_visible()
    expect(page.get_by_text("did not come within")).to_be_visible()


def redrive(page: Page) -> None:
    page.get_by_role("button", name="Redrive …").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive it").click()


def test_a_poison_event_is_redriven_after_a_repair(open_page: OpenPage, console: Console) -> None:
    before = read_accounting(open_page, console)
    capture = publish_poison(console, MODEL)
    assert read_accounting(open_page, console) - before == {"Offsets read": 1, "dead": 1}
    page = open_page("#/list/dead-letters")
    open_letter(page)
    repair(console, capture)
    redrive(page)
    expect(page.get_by_text("A redrive indexed it.")).to_be_visible(timeout=180_000)
    after = read_accounting(open_page, console)
    assert after - before == {"Offsets read": 1, "stored": 1}
    assert before - after == {}
    assert console.find_ids(MODEL) == [capture.inference_id]
