"""Batches of rows with copies depend on nothing but the blobs, and lists close at their bytes."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from inference_store.export import part_formats
from inference_store.export.columns import Row
from inference_store.export.listing import MOST_LISTS, ListLimits, cut_lists
from inference_store.export.part_formats import CopyLimits, CopySource
from inference_store.inference.errors import BlobMissing
from inference_store.inference.events import Buckets, StorageKey
from inference_store.objects import OVER_BUDGET, Blobs, Fetched

from .test_part_formats import make_plain_row

_COPIED = ("data", "response")
_MEBIBYTE = 1024 * 1024
_LIMITS = CopyLimits(blob=6 * _MEBIBYTE, part=20 * _MEBIBYTE)
_SIZES = st.none() | st.sampled_from((0, 1, _MEBIBYTE, 3 * _MEBIBYTE, 6 * _MEBIBYTE))


class UnsteadyBlobs(Blobs):
    """Has blobs of some sizes, None: missing, and uses up each budget at another blob."""

    def __init__(self, sizes: Sequence[int | None], ends: Sequence[int]) -> None:
        self.buckets = Buckets("captures", frozenset({"captures"}), ())
        self._sizes, self._ends = sizes, [*ends]

    def get_many(
        self, keys: Sequence[StorageKey | None], *, budget: int | None = None, **_: Any
    ) -> list[Fetched]:
        """Return the blobs before the budget is used up, and perhaps some after."""
        results: list[Fetched] = [self._get(key) for key in keys]
        if budget is not None and self._ends:
            results[self._ends.pop() % len(results)] = OVER_BUDGET
        return results

    def _get(self, key: StorageKey | None) -> Fetched:
        assert key is not None
        size = self._sizes[int(key.key)]
        return BlobMissing("it is gone") if size is None else bytes(size)


def make_rows(count: int) -> list[Row]:
    """Return rows whose keys are the positions of their blobs."""
    rows = []
    for number, row in enumerate(map(make_plain_row, range(count))):
        data, response = (f"s3://captures/{2 * number + n}" for n in range(2))
        keys: dict[str, Any] = {"data_storage_key": data, "response_storage_key": response}
        inference = row.inference._replace(row=row.inference.row | keys)
        rows.append(row._replace(inference=inference))
    return rows


def read_batches(sizes: Sequence[int | None], ends: Sequence[int]) -> list[list[list[int | None]]]:
    """Return the sizes of the blobs of each row of each batch."""
    source = CopySource(UnsteadyBlobs(sizes, ends), _COPIED, _LIMITS)
    return [
        [
            [None if content is None else len(content) for content in (row.contents or {}).values()]
            for row in batch
        ]
        for batch in source.complete(make_rows(len(sizes) // 2))
    ]


@given(
    st.lists(_SIZES, min_size=2, max_size=20).filter(lambda sizes: len(sizes) % 2 == 0),
    st.lists(st.integers(0, 19), max_size=8),
)
def test_batches_do_not_depend_on_what_is_read_at_once(
    sizes: list[int | None], ends: list[int]
) -> None:
    batches = read_batches(sizes, ends)
    assert batches == read_batches(sizes, ())
    copied = [size for batch in batches for row in batch for size in row]
    assert all(size in {wanted, None} for size, wanted in zip(copied, sizes, strict=True))
    left_out = [wanted for size, wanted in zip(copied, sizes, strict=True) if size != wanted]
    total = sum(filter(None, copied))
    assert total <= 2 * _LIMITS.part
    assert all((size or 0) + total > 2 * _LIMITS.part - 6 * _MEBIBYTE for size in left_out)
    for batch in batches:
        held = sum(size or 0 for row in batch for size in row)
        assert held <= part_formats._BATCH_BYTES or len(batch) == 1


@given(
    st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.integers(0, 9), max_size=120),
    st.integers(1, 6),
    st.integers(1, 20),
)
def test_lists_close_at_their_members_and_bytes(
    begun: list[int], sizes: list[int], members: int, most_bytes: int
) -> None:
    everything = [*begun, *sizes]
    uids = [UUID(int=number) for number in range(len(everything))]
    before, new = uids[: len(begun)], uids[len(begun) :]

    async def measure(some: Sequence[UUID]) -> Sequence[int]:
        return [everything[uid.int] for uid in some]

    limits = ListLimits(members, most_bytes)
    lists = asyncio.run(cut_lists(before, new, limits, measure))
    assert [uid for some in lists for uid in some] == uids[: sum(map(len, lists))]
    assert len(lists) <= MOST_LISTS
    assert len(lists) == MOST_LISTS or sum(map(len, lists)) == len(uids)
    for number, some in enumerate(lists):
        size = sum(everything[uid.int] for uid in some)
        is_begun = number == 0 and len(some) <= len(before)
        assert is_begun or len(some) == 1 or (len(some) <= members and size <= most_bytes)
