"""What comes through the socket, and until when."""

import time
from datetime import UTC, datetime
from io import BytesIO

import pytest

from inference_store.proxy.capture.arrivals import Arrivals
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.frames import Reader, Writer
from inference_store.proxy.capture.page import Cell, Page
from inference_store.proxy.capture.work import Work
from inference_store.proxy.rules import Rules
from tests.exchanges import CALL, exchange


@pytest.fixture
def page() -> Page:
    return Page.new()


def arrivals(page: Page, raw: bytes, *, grace_seconds: float = 60) -> Arrivals:
    counts = Counts("p", "p", datetime.now(UTC), page.cells)
    return Arrivals(Reader(BytesIO(raw)), page, counts, grace_seconds=grace_seconds)


def frames(count: int) -> bytes:
    writer = Writer()
    made = [writer.exchange(Work(exchange(), CALL, Rules(), "m"), 7) for _ in range(count)]
    return b"".join(b"".join(each) for each in made)


def test_all_is_read_before_anything_is_decoded(page: Page) -> None:
    found = arrivals(page, frames(3))
    found.read()
    assert page.cells[Cell.RECEIVED] == 3
    assert [each is not None for each in (found.next() for _ in range(4))] == [True] * 3 + [False]


def test_where_the_serving_process_died_there_is_its_grace(page: Page) -> None:
    found = arrivals(page, frames(1))
    assert found.deadline is None
    found.read()
    assert found.were_cut_off
    assert found.deadline is not None
    assert 50 < found.deadline - time.monotonic() <= 60
    assert not found.is_late


def test_after_the_deadline_nothing_more_is_given_out(page: Page) -> None:
    found = arrivals(page, frames(2))
    page.cells[Cell.DEADLINE] = time.monotonic_ns() - 1
    found.read()
    assert found.is_late
    assert not found.were_cut_off
    assert found.next() is None
