"""Cuts the next members into lists: by their number and, if blobs are copied, by their bytes."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

MOST_LISTS: Final = 50
"""Lists that are added in one step."""
_CHUNK: Final = 500
Measure: TypeAlias = Callable[[Sequence[UUID]], Awaitable[Sequence[int]]]
"""Returns the bytes of each of some members."""


class ListLimits(NamedTuple):
    """Most members of a list, and most bytes of their blobs, unless a single member has more."""

    members: int
    bytes: int


async def cut_lists(
    begun: Sequence[UUID], uids: Sequence[UUID], limits: ListLimits, measure: Measure
) -> list[list[UUID]]:
    """Return the lists of the next members, of as many as one step adds; the first list begins with
    what was listed before (`begun`)."""
    lists: list[list[UUID]] = [[*begun]]
    size = sum(await measure(begun)) if begun else 0
    for at in range(0, len(uids), _CHUNK):
        chunk = uids[at : at + _CHUNK]
        for uid, added in zip(chunk, await measure(chunk), strict=True):
            is_full = len(lists[-1]) >= limits.members or size + added > limits.bytes
            if lists[-1] and is_full:
                if len(lists) == MOST_LISTS:
                    return lists
                lists.append([])
                size = 0
            lists[-1].append(uid)
            size += added
    return lists
