"""The lists of operators and auditors: the audit, comparisons, accounting, dead letters."""

import re
from collections.abc import Sequence

import pytest
from playwright.sync_api import Page, Route, expect

from tests.producer import Producer, capture
from tests.servers.environment import PREFIX
from tests.servers.waiting import wait_until

from .conftest import Console, OpenPage, run_beside
from .content import STREET

LISTS = (
    *("Accounting", "Dead letters", "Retention", "Legal holds", "Erasures", "Exports"),
    *("Certificates", "Audit", "Reconcile", "Keys"),
)


@pytest.fixture(scope="module")
def edited(console: Console) -> str:
    """The uid of an inference whose metadata were edited once."""
    path = f"/v1/models/{STREET}/inferences/{STREET}-0020"
    metadata = [{"key": "seen", "type": "bool", "value": "true"}]
    console.ask("POST", f"{path}/metadata", {"metadata": metadata})
    return str(console.ask("GET", path)["uid"])


def test_filters_are_in_the_address(open_page: OpenPage, edited: str) -> None:
    page = open_page("#/list/audit")
    page.get_by_role("combobox", name="What").select_option("metadata_changed")
    expect(page).to_have_url(re.compile(r"audit\?action=metadata_changed$"))
    page.get_by_role("textbox", name="Inference").fill(edited)
    page.get_by_role("textbox", name="Inference").press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(f"uid={edited}"))
    page.locator("tbody summary").click()
    expect(page.locator("tbody pre")).to_contain_text('"seen"')
    again = open_page(page.url.partition("/console/")[2])
    expect(again.locator("tbody tr")).to_have_count(1)
    narrow = open_page(page.url.partition("/console/")[2], narrow=True)
    cell = narrow.locator("tbody td", has_text="Metadata changed")
    expect(cell).to_have_attribute("data-title", "What")
    assert (box := cell.bounding_box())
    assert box["x"] + box["width"] <= 390
    again.get_by_label("Until").fill("2020-01-01T00:00")
    again.get_by_role("button", name="Apply").click()
    expect(again.get_by_text("No matching entries.")).to_be_visible()
    again.go_back()
    expect(again.locator("tbody tr")).to_have_count(1)
    again.get_by_role("link", name="Clear").click()
    expect(again.locator("tbody tr").nth(1)).to_be_visible()


def test_value_filters_and_links_to_its_inference(open_page: OpenPage, edited: str) -> None:
    page = open_page(f"#/list/audit?action=metadata_changed&uid={edited}")
    page.locator("tbody").get_by_role("link", name=STREET).first.click()
    expect(page).to_have_url(re.compile(f"model_id={STREET}"))
    expect(page.get_by_role("combobox", name="Model")).to_have_value(STREET)
    page.locator("tbody").get_by_role("link", name=edited).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"{STREET}-0020")


def test_every_list_loads(open_page: OpenPage) -> None:
    page = open_page()
    page.locator("summary", has_text="Operate").click()
    for title in LISTS:
        page.get_by_role("navigation").get_by_role("link", name=title, exact=True).click()
        expect(page.get_by_role("heading", name=title, level=1)).to_be_visible()
        expect(page.locator("tbody tr, .none").first).to_be_visible()


def test_starts_and_follows_a_comparison(open_page: OpenPage) -> None:
    page = open_page("#/list/reconcile")
    page.get_by_role("button", name="Compare now").click()
    expect(page).to_have_url(re.compile("list/reconcile/[0-9a-f-]{36}$"))
    expect(page.get_by_role("status").first).to_have_text(
        re.compile("Bucket and index agree|orphans|missing"), timeout=180_000
    )
    expect(page.get_by_text("blobs that rows name")).to_be_visible()
    expect(page.get_by_text(re.compile(r"\d+ stored \+ 0 rebuilt"))).to_be_visible()
    page.get_by_role("link", name=re.compile("Missing")).click()
    expect(page).to_have_url(re.compile(r"\?kind=missing$"))
    expect(page.locator("tbody tr, .none").first).to_be_visible()
    page.get_by_role("link", name="← Reconcile").click()
    expect(page.locator("tbody tr").first).to_contain_text(re.compile("they (agree|differ)"))


PRODUCER = "0199f2c4-8b1e-7a52-9d1c-2f6f0a4be001"


def publish_sequence(console: Console, *numbers: int, arrived: int) -> None:
    """Publish these events of a producer that never reports; wait until so many have arrived."""

    async def publish() -> None:
        topic = console.environment[f"{PREFIX}KAFKA_TOPIC"]
        async with Producer(console.environment, topic) as producer:
            captures = [capture(number, model_id="sequenced") for number in numbers]
            await producer.put_all(captures)
            for sent in captures:
                headers = [("producer", PRODUCER.encode()), ("sequence", b"%d" % sent.number)]
                await producer.publish(sent.event, headers=headers)

    def list_arrived() -> list[int]:
        producers = console.ask("GET", "/v1/accounting")["producers"]
        return [each["arrived"] for each in producers if each["producer"] == PRODUCER]

    run_beside(publish())
    wait_until(lambda: list_arrived() == [arrived], seconds=180, what="the producer")


def test_shows_missing_captures_of_a_producer(open_page: OpenPage, console: Console) -> None:
    publish_sequence(console, 1, 3, arrived=2)
    page = open_page("#/list/accounting")
    expect(page.get_by_role("status")).to_contain_text("Captures of 1 producer are missing")
    page.get_by_role("link", name=PRODUCER).click()
    expect(page.get_by_text("2 of 3 captures have arrived: 1 unexplained")).to_be_visible()
    # What other tests expect of the same store: that its books close.
    publish_sequence(console, 2, arrived=3)
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_text("3 of 3 captures have arrived.")).to_be_visible()


def test_shows_why_the_books_do_not_close(open_page: OpenPage) -> None:
    page = open_page()

    def break_books(route: Route) -> None:
        books = route.fetch().json()
        books["closes"] = books["partitions"][0]["closes"] = False
        books["partitions"][0] |= {"waiting": 3, "oldest_waiting_at": "2026-11-01T12:00:00Z"}
        books["partitions"][0]["next"] += 2
        route.fulfill(json=books)

    page.route("**/v1/accounting", break_books)
    page.locator("summary", has_text="Operate").click()
    page.get_by_role("navigation").get_by_role("link", name="Accounting").click()
    expect(page.get_by_role("status")).to_contain_text("The books do not close.")
    expect(page.locator(".note.bad").last).to_contain_text("2 offsets of")
    expect(page.locator(".note.bad").last).to_contain_text("have no state")
    expect(page.locator(".note.bad").last).to_contain_text("3 offsets wait for an ingester, the")


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
    expect(payload).to_contain_text("It is not valid UTF-8")


def redrive(page: Page, button: str, number: int) -> None:
    """Redrive dead letters, and check the outcome of each."""
    page.get_by_role("button", name=button).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("status")).to_contain_text(f"{number} dead letter")
    dialog.get_by_role("button", name=f"Redrive {number}").click()
    expect(dialog.get_by_role("status")).to_have_text(f"{number} open again", timeout=180_000)
    expect(dialog.locator("tbody tr")).to_have_count(number)
    dialog.get_by_role("button", name="Done").click()


def test_redrive_selected_or_all(open_page: OpenPage, console: Console, letters: list[int]) -> None:
    page = open_page(LETTERS)
    page.get_by_label(f"Select {letters[0]}").check()
    page.get_by_label(f"Select {letters[2]}").check()
    redrive(page, "Redrive 2 …", 2)
    page.get_by_role("group", name="Reason").get_by_role("button", name="not_json 2").click()
    redrive(page, "Redrive all of not_json …", 2)
    attempts = [console.ask("GET", f"/v1/dead-letters/{id}")["attempts"] for id in letters]
    assert attempts[2] > attempts[0] >= attempts[1]


def test_redrive_and_discard_one(open_page: OpenPage, console: Console, letters: list[int]) -> None:
    page = open_page(f"{LETTERS}/{letters[0]}")
    before = console.ask("GET", f"/v1/dead-letters/{letters[0]}")["attempts"]
    page.get_by_role("button", name="Redrive …").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive").click()
    attempts = page.locator("dt", has_text="Attempts").locator("+ dd")
    expect(attempts).to_have_text(str(before + 1), timeout=180_000)
    page.get_by_role("button", name="Discard …").click()
    page.get_by_label("Reason").fill("a test message")
    page.get_by_role("dialog").get_by_role("button", name="Discard").click()
    expect(page.get_by_text("Discarded: it will never be indexed.")).to_be_visible()
    expect(page.get_by_text("a test message")).to_be_visible()
