from datetime import UTC, datetime
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from inference_store.ingester.batch import Assigned, Batch, Read
from inference_store.ingester.headers import headers_of, sequence_of
from inference_store.ingester.shares import cut, share_of
from inference_store.store.books import Place
from inference_store.store.records import Record, Trouble

PLACE = Place("default", "events", 0, 0)


def record(offset: int, *headers: tuple[str, str]) -> Record:
    return Record(PLACE, offset, datetime(2026, 1, 1, tzinfo=UTC), None, b"x", headers)


offsets = st.lists(st.integers(0, 60), min_size=1, max_size=20, unique=True).map(sorted)


@given(offsets, st.integers(0, 10))
def test_a_share_accounts_for_every_offset(found: list[int], before: int) -> None:
    lo = max(found[0] - before, 0)
    share = share_of(Assigned(0), PLACE, lo=lo, lost=0, records=[record(o) for o in found])
    assert share.hi == found[-1] + 1
    assert share.lost + share.not_delivered + len(share.records) == share.hi - share.lo


@given(offsets, st.integers(1, 5), st.integers(0, 3))
def test_a_cut_batch_covers_the_same_offsets_without_a_hole(
    found: list[int], most_rows: int, lost: int
) -> None:
    lo = max(found[0] - lost, 0)
    lost = found[0] - lo
    records = [record(o) for o in found]
    share = share_of(Assigned(0), PLACE, lo=lo, lost=lost, records=records)
    reads = [Read(one, Trouble("not_json", "")) for one in records]
    parts = list(cut(Batch([share], reads), most_rows=most_rows))
    shares = [part.shares[0] for part in parts]
    assert shares[0].lo == lo
    assert shares[-1].hi == share.hi
    assert all(one.hi == other.lo for one, other in pairwise(shares))
    assert sum(one.lost for one in shares) == share.lost
    assert sum(one.not_delivered for one in shares) == share.not_delivered
    assert [read for part in parts for read in part.reads] == reads
    assert all(len(part.reads) <= most_rows for part in parts)


def test_sequences_are_kept_by_producer() -> None:
    headers = (("producer", "p"), ("sequence", "3"))
    share = share_of(Assigned(0), PLACE, lo=0, lost=0, records=[record(0, *headers), record(1)])
    assert share.sequences == {"p": [3]}


def test_odd_headers_are_no_sequence() -> None:
    for headers in ((), (("producer", "p"),), (("producer", "p"), ("sequence", "٣"))):
        assert sequence_of(headers) is None
    assert sequence_of((("producer", "p"), ("sequence", "9" * 19))) is None


def test_headers_become_text_that_postgres_keeps() -> None:
    assert headers_of([("a\0", b"\xff\0"), ("b", None)]) == (("a\ufffd", "\ufffd\ufffd"), ("b", ""))
    assert len(headers_of([("a", b"1")] * 100)) == 32
