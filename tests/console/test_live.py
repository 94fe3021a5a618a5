"""Arrivals are shown at once, over one stream for all windows of a browser."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
from playwright.sync_api import Page, expect

from tests.producer import Capture, Producer
from tests.servers.environment import PREFIX
from tests.servers.waiting import wait_until

from .conftest import Console, OpenPage

MODEL = "arrivals"
PAGE = f"#/m/{MODEL}?live=1"
_NUMBERS = count(1_000_000)


def produce_arrival(console: Console) -> str:
    """Produce an inference, and return its id."""
    number = next(_NUMBERS)
    capture = Capture(number, model_id=MODEL, inference_id=f"arrival-{number}")
    with ThreadPoolExecutor(1) as thread:  # the browser's loop runs in this one
        thread.submit(asyncio.run, _send(console, capture)).result()
    return f"arrival-{number}"


async def _send(console: Console, capture: Capture) -> None:
    topic = console.environment[f"{PREFIX}KAFKA_TOPIC"]
    async with Producer(console.environment, topic) as producer:
        await producer.produce(capture)


@pytest.fixture(scope="module")
def arrival(console: Console) -> str:
    """The id of the model's first indexed inference."""
    first = produce_arrival(console)
    wait_until(lambda: is_known(console, first), seconds=60, what="the first to be indexed")
    return first


def is_known(console: Console, inference_id: str) -> bool:
    """Return whether an inference is indexed."""
    models = console.ask("GET", "/v1/models")["items"]
    if MODEL not in {model["model_id"] for model in models}:
        return False
    return inference_id in console.find_ids(MODEL)


def wait_live(page: Page) -> None:
    """Wait until the page follows arrivals."""
    expect(page.locator("button .lamp.on")).to_be_visible()


def test_an_arrival_is_shown_without_a_reload(
    open_page: OpenPage, console: Console, arrival: str
) -> None:
    page = open_page(f"#/m/{MODEL}")
    expect(page.get_by_text(arrival)).to_be_visible()
    page.get_by_role("button", name="Live").click()
    wait_live(page)
    expect(page.get_by_text(produce_arrival(console))).to_be_visible()


@pytest.mark.usefixtures("arrival")
def test_a_range_with_an_end_cannot_be_followed(open_page: OpenPage) -> None:
    page = open_page(f"{PAGE}&t=2020-01-01T00:00:00Z..2020-01-02T00:00:00Z")
    expect(page.get_by_role("button", name="Live")).to_be_disabled()


def test_ten_windows_share_one_stream(open_page: OpenPage, console: Console, arrival: str) -> None:
    first = open_page(PAGE)
    wait_live(first)
    address = first.url
    others = [first.context.new_page() for _ in range(9)]
    for page in others:
        page.goto(address)
        wait_live(page)
        expect(page.get_by_text(arrival)).to_be_visible()
    for page in (first, *others[:-1]):
        expect(page.get_by_role("button", name="another window is live")).to_be_visible()
    inference_id = produce_arrival(console)
    for page in (first, others[-1]):
        expect(page.get_by_text(inference_id)).to_be_visible()


@pytest.mark.usefixtures("arrival")
def test_an_arrival_below_the_top_is_announced(open_page: OpenPage, console: Console) -> None:
    page = open_page(f"{PAGE}&s=received_at")
    wait_live(page)
    inference_id = produce_arrival(console)
    # That of the test before may be announced too, and earlier.
    wait_until(lambda: is_known(console, inference_id), seconds=60, what="it to be indexed")
    page.get_by_role("button", name="new: show").click()
    expect(page.get_by_text(inference_id)).to_be_visible()
