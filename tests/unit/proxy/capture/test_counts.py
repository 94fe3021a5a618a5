"""The books of a producer whose processes are killed, whenever that is."""

import os
import random
from datetime import UTC, datetime

import pytest

from inference_store.proxy.capture.budget import Budget
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.page import Cell, Page


def counts(page: Page) -> Counts:
    return Counts("p", "p", datetime.now(UTC), page.cells)


@pytest.fixture
def page() -> Page:
    return Page.new()


@pytest.mark.parametrize("seed", range(30))
def test_whenever_a_capture_process_is_killed_the_books_close_and_no_number_is_given_twice(
    seed: int, page: Page
) -> None:
    chance = random.Random(seed)
    serving, capture = counts(page), counts(Page(os.dup(page.file)))
    handed = unread = spooled = 0
    in_memory = 0
    numbers: list[int] = []
    for _ in range(2000):
        match chance.randrange(8):
            case 0 | 1:
                serving.see()
                handed, unread = handed + 1, unread + 1
            case 2:
                serving.refuse("no_budget")
            case 3 | 4 if unread:
                unread -= 1
                capture.receive()
                if chance.random() < 0.2:
                    capture.sample_out()
                else:
                    numbers.append(capture.next_sequence())
                    in_memory += 1
            case 5 if in_memory:
                in_memory -= 1
                if chance.random() < 0.5:
                    capture.publish(1)
                else:
                    capture.drop("refused")
            case 6 if in_memory:
                in_memory -= 1
                spooled += 1
            case 7 if chance.random() < 0.1:  # killed
                capture = counts(Page(os.dup(page.file)))
                lost = unread + in_memory
                before = serving.dropped.get("process_ended", 0)
                capture.go_on(handed, spooled)
                assert serving.dropped.get("process_ended", 0) == before + lost
                unread = in_memory = 0
                assert serving.queued == spooled
        report = capture.report()
        assert report.closes
        assert report.queued == unread + in_memory + spooled
    assert numbers == sorted(set(numbers))
    # what was told to nobody: serving has died
    capture.lose_unread()
    assert capture.queued == in_memory + spooled
    capture.give_up(spooled)
    report = capture.report(spooled=spooled, final=True)
    assert report.closes
    assert report.dropped.get("left", 0) == in_memory
    assert report.highest_sequence == report.seen - report.sampled_out


@pytest.mark.parametrize("received", [2, 4, 5])
def test_what_there_was_no_time_to_read_or_decode_is_left(received: int, page: Page) -> None:
    serving, capture = counts(page), counts(page)
    for _ in range(5):
        serving.see()
    for _ in range(received):
        capture.receive()
    for _ in range(2):
        capture.next_sequence()
    capture.publish(1)
    capture.give_up(0)
    report = capture.report()
    assert (report.dropped, report.published, report.highest_sequence) == ({"left": 4}, 1, 5)


def test_one_budget_for_both(page: Page) -> None:
    serving, capture = Budget(page.cells, 100), Budget(Page(os.dup(page.file)).cells, 100)
    assert serving.take(60)
    assert not serving.take(41)
    capture.free(-30)  # it became larger
    assert (serving.held, capture.held) == (90, 90)
    capture.free(90)
    assert serving.take(100)
    serving.give_back(100)
    assert capture.held == 0


def test_what_is_told_is_whole_or_not_there(page: Page) -> None:
    other = Page(os.dup(page.file))
    assert other.told() is None
    page.tell(b"a text")
    assert other.told() == b"a text"
    page.tell(bytes(10**6))
    assert other.told() == b"a text"
    page.cells[Cell.TELLING] += 1  # killed while it was writing
    assert other.told() is None
    page.tell(b"another")
    assert other.told() == b"another"
