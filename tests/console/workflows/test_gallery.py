"""A gallery of 200: four requests for thumbnails and four audit entries, however one scrolls."""

import re
from collections.abc import Sequence

import pytest
from playwright.sync_api import expect

from tests.console.conftest import Console, OpenPage
from tests.console.test_erasures import make_captures
from tests.console.watched_page import AskedRequests, wait_in_page

MODEL = "gallery-cameras"
INFERENCES = 200
PAGE, NEXT_PAGE = 60, 120
ALMOST_TO_THE_END = "main => main.scrollTo(0, main.scrollHeight - main.clientHeight - 300)"
MOST_REQUESTS = 4
SCROLLED = range(9, INFERENCES, 10)
JUMPED = [*range(PAGE - 1, INFERENCES, PAGE), *reversed(SCROLLED)]
"""To the end of each page of the list, then back."""


@pytest.fixture(scope="module")
def gallery(console: Console) -> str:
    """The address of a model with pictures."""
    console.produce(*make_captures(MODEL, 0, INFERENCES))
    return f"{console.address}/console/#/m/{MODEL}"


def count_reads(console: Console) -> int:
    """How many entries the audit has about thumbnails of the model."""
    path = f"/v1/audit?action=thumbnails_read&model_id={MODEL}&limit=1000"
    return len(console.ask("GET", path)["items"])


@pytest.mark.parametrize("steps", [SCROLLED, JUMPED], ids=["scrolled", "jumped"])
def test_it_takes_four_requests_and_audit_entries(
    open_page: OpenPage, console: Console, gallery: str, steps: Sequence[int]
) -> None:
    page = open_page("#/list/accounting")  # has no picture
    expect(page.locator("tbody tr").first).to_be_visible()
    before = count_reads(console)
    thumbnails, inputs = AskedRequests(page, "/thumbnails"), AskedRequests(page, "/data")
    page.goto(gallery)
    tiles = page.locator(".tile")
    for number in steps:
        tiles.nth(number).scroll_into_view_if_needed()
        expect(tiles.nth(number).locator("img")).to_be_visible()
    expect(tiles).to_have_count(INFERENCES)
    pictures = tiles.locator("img")
    expect(pictures.first).to_have_attribute("src", re.compile("^data:image/jpeg;base64,"))
    wait_in_page(
        page, lambda: pictures.count() < INFERENCES / 2, what="what is far from the window goes"
    )
    thumbnails.wait_answered()
    assert len(thumbnails.urls) <= MOST_REQUESTS
    assert count_reads(console) - before == len(thumbnails.urls)
    assert not inputs.urls


def test_the_next_page_comes_before_the_end_is_reached(open_page: OpenPage, gallery: str) -> None:
    page = open_page(gallery.partition("/console/")[2])
    expect(page.locator(".tile")).to_have_count(PAGE)
    page.get_by_role("main").evaluate(ALMOST_TO_THE_END)
    expect(page.locator(".tile")).to_have_count(PAGE + NEXT_PAGE)
