"""Dead letters: by reason, as text and bytes, redriven with an outcome for each, discarded."""

import re
from collections.abc import Sequence

import pytest
from playwright.sync_api import Page, expect

from tests.producer import Producer
from tests.servers.environment import PREFIX
from tests.servers.waiting import wait_until

from .conftest import Console, OpenPage, run_beside

LETTERS = "#/list/dead-letters"
NOT_JSON = [b"{not json <b>bold</b>", b"\xff\xfe bytes \x00"]
NO_EVENT = [b'{"inference_id": "alone"}']
PATH = "/v1/dead-letters?state=open&limit=1000"


async def publish(environment: dict[str, str], messages: Sequence[bytes]) -> None:
    async with Producer(environment, environment[f"{PREFIX}KAFKA_TOPIC"]) as producer:
        await producer.publish_all(messages)


@pytest.fixture
def letters(console: Console) -> list[int]:
    """The ids of three new open dead letters, newest first; those of other tests are discarded."""
    for item in console.ask("GET", PATH)["items"]:
        console.ask("POST", f"/v1/dead-letters/{item['id']}/discard", {"reason": "of another test"})
    run_beside(publish(console.environment, [*NOT_JSON, *NO_EVENT]))

    def list_open() -> list[int]:
        return [item["id"] for item in console.ask("GET", PATH)["items"]]

    wait_until(lambda: len(list_open()) == 3, seconds=180, what="three dead letters")
    return list_open()


def test_by_reason_with_counts_in_the_address(open_page: OpenPage, letters: list[int]) -> None:
    page = open_page(LETTERS)
    expect(page.locator("tbody tr")).to_have_count(len(letters))
    reasons = page.get_by_role("group", name="Reason")
    reasons.get_by_role("button", name="not_json 2").click()
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page).to_have_url(re.compile("reason=not_json"))
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_label("State").select_option("discarded")
    expect(page).to_have_url(re.compile(r"state=discarded$"))


@pytest.mark.usefixtures("letters")
def test_a_payload_is_text_and_hex(open_page: OpenPage) -> None:
    page = open_page(f"{LETTERS}?reason=not_json")
    page.locator("tbody tr").last.get_by_role("link").click()
    payload = page.get_by_role("region", name="Payload")
    expect(payload.locator("pre").first).to_have_text("{not json <b>bold</b>")
    payload.get_by_role("button", name="Hex").click()
    expect(payload.locator("pre").first).to_contain_text("7b 6e 6f 74 20 6a 73 6f  6e 20 3c 62")
    page.go_back()
    page.locator("tbody tr").first.get_by_role("link").click()
    expect(payload).to_contain_text("It is no text in UTF-8")


def redrive(page: Page, button: str, number: int) -> None:
    """Redrive dead letters, and check the outcome of each."""
    page.get_by_role("button", name=button).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("status")).to_contain_text(f"{number} dead letter")
    dialog.get_by_role("button", name=f"Redrive {number}").click()
    expect(dialog.get_by_role("status")).to_have_text(f"{number} open again", timeout=180_000)
    expect(dialog.locator("tbody tr")).to_have_count(number)
    dialog.get_by_role("button", name="Done").click()


def test_redrive_a_selection_and_all_of_a_reason(
    open_page: OpenPage, console: Console, letters: list[int]
) -> None:
    page = open_page(LETTERS)
    page.get_by_label(f"Choose {letters[0]}").check()
    page.get_by_label(f"Choose {letters[2]}").check()
    redrive(page, "Redrive 2 …", 2)
    page.get_by_role("group", name="Reason").get_by_role("button", name="not_json 2").click()
    redrive(page, "Redrive all of not_json …", 2)
    attempts = [console.ask("GET", f"/v1/dead-letters/{id}")["attempts"] for id in letters]
    assert attempts[2] > attempts[0] >= attempts[1]


def test_redrive_one_and_discard_it(
    open_page: OpenPage, console: Console, letters: list[int]
) -> None:
    page = open_page(f"{LETTERS}/{letters[0]}")
    before = console.ask("GET", f"/v1/dead-letters/{letters[0]}")["attempts"]
    page.get_by_role("button", name="Redrive …").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive it").click()
    attempts = page.locator("dt", has_text="Attempts").locator("+ dd")
    expect(attempts).to_have_text(str(before + 1), timeout=180_000)
    page.get_by_role("button", name="Discard …").click()
    page.get_by_label("Reason").fill("a test message")
    page.get_by_role("dialog").get_by_role("button", name="Discard it").click()
    expect(page.get_by_text("Discarded: it will never be indexed.")).to_be_visible()
    expect(page.get_by_text("a test message")).to_be_visible()


def test_shows_a_concurrent_decision(
    open_page: OpenPage, console: Console, letters: list[int]
) -> None:
    page = open_page(f"{LETTERS}/{letters[0]}")
    page.get_by_role("button", name="Redrive …").click()
    console.ask("POST", f"/v1/dead-letters/{letters[0]}/discard", {"reason": "first"})
    page.get_by_role("dialog").get_by_role("button", name="Redrive it").click()
    expect(page.get_by_role("alert")).to_contain_text("Load it again")
    page.get_by_role("button", name="Load again").click()
    expect(page.get_by_text("first", exact=True)).to_be_visible()
