"""Accounting by partition and producer, with differences in words."""

from playwright.sync_api import Route, expect

from tests.producer import Producer, capture
from tests.servers.environment import PREFIX
from tests.servers.waiting import wait_until

from .conftest import Console, OpenPage, run_beside

PRODUCER = "0199f2c4-8b1e-7a52-9d1c-2f6f0a4be001"


async def publish_gap(environment: dict[str, str]) -> None:
    """Publish the first and the third event of a producer that never reports."""
    async with Producer(environment, environment[f"{PREFIX}KAFKA_TOPIC"]) as producer:
        captures = [capture(number, model_id="sequenced") for number in (1, 3)]
        await producer.put_all(captures)
        for sent in captures:
            headers = [("producer", PRODUCER.encode()), ("sequence", b"%d" % sent.number)]
            await producer.publish(sent.event, headers=headers)


def test_shows_missing_captures_of_a_producer(open_page: OpenPage, console: Console) -> None:
    run_beside(publish_gap(console.environment))
    wait_until(
        lambda: (
            [account["arrived"] for account in console.ask("GET", "/v1/accounting")["producers"]]
            == [2]
        ),
        seconds=180,
        what="the producer",
    )
    page = open_page("#/list/accounting")
    expect(page.get_by_role("status")).to_contain_text("Captures of 1 producer are missing")
    page.get_by_role("link", name=PRODUCER).click()
    expect(page.get_by_text("1 did not arrive, and nothing explains it.")).to_be_visible()
    numbers = page.get_by_role("region", name="Sequence numbers").locator("dd")
    expect(numbers.first).to_have_text("3")


def test_shows_why_the_books_do_not_close(open_page: OpenPage) -> None:
    page = open_page()

    def break_books(route: Route) -> None:
        books = route.fetch().json()
        books["closes"] = books["partitions"][0]["closes"] = False
        books["partitions"][0] |= {"waiting": 3, "oldest_waiting_at": "2026-11-01T12:00:00Z"}
        books["partitions"][0]["next"] += 2
        route.fulfill(json=books)

    page.route("**/v1/accounting", break_books)
    page.get_by_role("navigation").get_by_role("link", name="Accounting").click()
    expect(page.get_by_role("status")).to_contain_text("The books do not close.")
    expect(page.locator(".note.bad").last).to_contain_text("2 offsets of")
    expect(page.locator(".note.bad").last).to_contain_text("have no state")
    expect(page.locator(".note.bad").last).to_contain_text("3 offsets wait for an ingester, the")
