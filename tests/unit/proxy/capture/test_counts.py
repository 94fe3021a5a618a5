"""The books of a producer whose processes are killed, whenever that is."""

import os
import random
from datetime import UTC, datetime

import pytest

from inference_store.proxy.capture.counts import Budget, CounterId, Counts, SharedCounters


def make_counts(counters: SharedCounters) -> Counts:
    return Counts("p", "p", datetime.now(UTC), counters.values)


@pytest.fixture
def counters() -> SharedCounters:
    return SharedCounters.new()


@pytest.mark.parametrize("seed", range(10))
def test_whenever_a_capture_process_is_killed_the_books_close_and_no_number_is_given_twice(
    seed: int, counters: SharedCounters
) -> None:
    chance = random.Random(seed)
    serving, capture = make_counts(counters), make_counts(SharedCounters(os.dup(counters.file)))
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
                capture = make_counts(SharedCounters(os.dup(counters.file)))
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
    # never reported: the serving process has died
    capture.lose_unread()
    assert capture.queued == in_memory + spooled
    capture.give_up(spooled)
    report = capture.report(spooled=spooled, final=True)
    assert report.closes
    assert report.dropped.get("left", 0) == in_memory
    assert report.highest_sequence == report.seen - report.sampled_out


def test_both_processes_share_one_budget(counters: SharedCounters) -> None:
    serving, capture = (
        Budget(counters.values, 100),
        Budget(SharedCounters(os.dup(counters.file)).values, 100),
    )
    assert serving.take(60)
    assert not serving.take(41)
    capture.free(-30)  # it became larger
    assert (serving.held, capture.held) == (90, 90)
    capture.free(90)
    assert serving.take(100)
    serving.give_back(100)
    assert capture.held == 0


def test_counters_are_read_whole_or_not_at_all(counters: SharedCounters) -> None:
    other = SharedCounters(os.dup(counters.file))
    assert other.read_status() is None
    counters.write_status(b"a text")
    assert other.read_status() == b"a text"
    counters.write_status(bytes(10**6))
    assert other.read_status() == b"a text"
    counters.values[CounterId.WRITING_STATUS] += 1  # killed while it was writing
    assert other.read_status() is None
    counters.write_status(b"another")
    assert other.read_status() == b"another"
