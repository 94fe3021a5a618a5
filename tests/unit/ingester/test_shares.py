from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from inference_store.index.books import Place
from inference_store.index.records import Record, Trouble
from inference_store.ingester.batch import Assigned, Read
from inference_store.ingester.headers import headers_of, sequence_of
from inference_store.ingester.shares import Gathering, passed_share, share_of

PLACE = Place("default", "events", 0, 0)


def record(offset: int, *headers: tuple[str, str], partition: int = 0) -> Record:
    place = replace(PLACE, partition=partition)
    return Record(place, offset, datetime(2026, 1, 1, tzinfo=UTC), None, b"x", headers)


offsets = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)


@given(offsets, st.integers(0, 10))
def test_a_share_accounts_for_every_offset(found: list[int], before: int) -> None:
    lo = max(found[0] - before, 0)
    share = share_of(Assigned(0), PLACE, lo=lo, lost=0, records=[record(o) for o in found])
    assert share.hi == found[-1] + 1
    assert share.lost + share.not_delivered + len(share.records) == share.hi - share.lo


@given(st.lists(offsets, min_size=1, max_size=3), st.integers(1, 5), st.integers(1, 4))
def test_a_gathered_batch_covers_the_same_offsets_without_a_hole(
    found: list[list[int]], most_rows: int, slice: int
) -> None:
    shares = [
        share_of(
            Assigned(number),
            replace(PLACE, partition=number),
            lo=max(offsets[0] - 2, 0),
            lost=min(offsets[0], 1),
            records=[record(offset, partition=number) for offset in offsets],
        )
        for number, offsets in enumerate(found)
    ]
    batches, gathering = [], Gathering()
    for share in shares:
        gathering.begin(share)
        for start in range(0, len(share.records), slice):
            some = share.records[start : start + slice]
            gathering.add(some, [Read(one, Trouble("not_json", "")) for one in some])
            if gathering.rows >= most_rows:
                batches.append(gathering.taken())
    if gathering.reads:
        batches.append(gathering.taken())
    for share in shares:
        parts = [part for b in batches for part in b.shares if part.place == share.place]
        assert (parts[0].lo, parts[-1].hi) == (share.lo, share.hi)
        assert all(one.hi == other.lo for one, other in pairwise(parts))
        assert sum(part.lost for part in parts) == share.lost
        assert sum(part.not_delivered for part in parts) == share.not_delivered
    everything = [one for share in shares for one in share.records]
    assert [read.record for batch in batches for read in batch.reads] == everything
    assert all(len(batch.reads) < most_rows + slice for batch in batches)


def test_sequences_are_kept_by_producer() -> None:
    headers = (("producer", "p"), ("sequence", "3"))
    share = share_of(Assigned(0), PLACE, lo=0, lost=0, records=[record(0, *headers), record(1)])
    assert share.sequences == {"p": [3]}


def test_odd_headers_are_no_sequence() -> None:
    for headers in ((), (("producer", "p"),), (("producer", "p"), ("sequence", "٣"))):
        assert sequence_of(headers) is None
    assert sequence_of((("producer", "p"), ("sequence", "9" * 19))) is None
    assert sequence_of((("producer", "p" * 257), ("sequence", "1"))) is None


def test_headers_become_text_that_postgres_keeps() -> None:
    assert headers_of([("a\0", b"\xff\0"), ("b", None)]) == (("a\ufffd", "\ufffd\ufffd"), ("b", ""))
    assert len(headers_of([("a", b"1")] * 100)) == 32


def test_offsets_that_were_passed_over_are_a_batch_of_their_own() -> None:
    share = passed_share(Assigned(0), PLACE, lo=3, hi=7, lost=1)
    gathering = Gathering()
    assert not gathering.has_begun
    gathering.begin(share)
    assert gathering.has_begun
    [part] = gathering.taken().shares
    assert (part.lo, part.hi, part.lost, part.not_delivered, part.last) == (3, 7, 1, 3, None)
