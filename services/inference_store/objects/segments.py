"""Reads segments (`inference/tar.py`): whole ones, and members, each with the header before it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from hashlib import sha256
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from inference_store.inference.errors import BlobMissing, BlobUnreadable
from inference_store.inference.events import StorageKey
from inference_store.inference.layout import MOST_MEMBERS, Member, member_of
from inference_store.inference.tar import BLOCK, ERASED, Entry, iterate_entries, read_header

from .transfers import BlobStream, refuse_size

ReadRange: TypeAlias = Callable[[StorageKey, int, int], tuple[memoryview, int]]
"""Returns the bytes of an object from the first position to before the second, and its size."""
StreamRange: TypeAlias = Callable[[StorageKey, tuple[int, int]], Awaitable[BlobStream]]

_MOST_ENTRIES: Final = 3 * MOST_MEMBERS
# A request costs as much as so many bytes more.
_NEAR_BYTES: Final = 256 * 1024
# The most that is read together, beside a single member that is larger.
_TOGETHER_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Contents:
    """The entries of a segment, with the data of those that were wanted; its bytes and their
    SHA-256."""

    entries: Sequence[tuple[Entry, bytes | None]]
    size: int
    hash: str


def read_contents(pieces: Iterable[bytes], wants: Callable[[Entry], bool]) -> Contents:
    """Read a segment that arrives in pieces, and hold one of them beside the data that are wanted.
    Raises ValueError where it is no tar of ours."""
    whole = _Pieces(pieces)
    entries = list(islice(iterate_entries(whole, wants), _MOST_ENTRIES + 1))
    if len(entries) > _MOST_ENTRIES:
        raise ValueError("the tar has more entries than a segment has")
    while whole.read(_NEAR_BYTES):
        pass
    return Contents(entries, whole.size, whole.hash.hexdigest())


class _Pieces:
    """Bytes that arrive in pieces; `size`: those that were read."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._rest = iter(pieces), memoryview(b"")
        self.size, self.hash = 0, sha256()

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, fewer at the end."""
        taken: list[memoryview] = []
        while size > 0:
            if not self._rest:
                piece = next(self._pieces, b"")
                if not piece:
                    break
                self.hash.update(piece)
                self._rest = memoryview(piece)
            part, self._rest = self._rest[:size], self._rest[size:]
            taken.append(part)
            size -= len(part)
            self.size += len(part)
        return b"".join(taken)


def get_member(read: ReadRange, key: StorageKey, member: Member, limit: int) -> bytes:
    """Return a member's bytes. Raises BlobMissing, also if it was erased; BlobTooLarge,
    ObjectStoreUnavailable, AccessDenied."""
    refuse_size(key, member.length, limit)
    segment = StorageKey(key.bucket, member.segment)
    found, _ = read(segment, find_start(key, member), member.offset + member.length)
    return check_member(key, member, found)


class MemberKey(NamedTuple):
    """A key that names a member, and its place among those that are read with it."""

    place: int
    key: StorageKey
    member: Member

    @property
    def segment(self) -> StorageKey:
        """The object that holds it."""
        return StorageKey(self.key.bucket, self.member.segment)


def list_members(keys: Sequence[StorageKey | None]) -> list[MemberKey]:
    """Return those of the keys that may name members, in their order."""
    members = ((place, key, member_of(key.key)) for place, key in enumerate(keys) if key)
    return [
        MemberKey(place, key, member)
        for place, key, member in members
        # what no segment can have would spoil the reading of others
        if member is not None and member.offset >= BLOCK
    ]


def group_near(members: Iterable[MemberKey]) -> list[list[MemberKey]]:
    """Group members by what one request reads: near ones of a segment, up to some megabytes."""
    groups: list[list[MemberKey]] = []
    segment: StorageKey | None = None
    first = end = 0
    for each in sorted(members, key=lambda each: (each.key.bucket, *astuple(each.member))):
        begins, ends = each.member.offset - BLOCK, each.member.offset + each.member.length
        is_near = begins - end <= _NEAR_BYTES and ends - first <= _TOGETHER_BYTES
        if each.segment != segment or not is_near:
            groups.append([])
            segment, first, end = each.segment, begins, 0
        groups[-1].append(each)
        end = max(end, ends)
    return groups


def get_members(read: ReadRange, group: Sequence[MemberKey]) -> list[bytes | BlobMissing]:
    """Return members of one segment, read by one request. Raises as `get_member` if it is
    refused."""
    start = find_start(*group[0][1:])
    whole, _ = read(group[0].segment, start, max(m.offset + m.length for _, _, m in group))
    found: list[bytes | BlobMissing] = []
    for _, key, member in group:
        at = member.offset - start
        try:
            found.append(check_member(key, member, whole[at - BLOCK : at + member.length]))
        except BlobMissing as missing:
            found.append(missing)
    return found


def check_there(read: ReadRange, key: StorageKey, member: Member) -> None:
    """Raise BlobMissing if a member was erased, or ends behind the end of its segment."""
    segment = StorageKey(key.bucket, member.segment)
    header, size = read(segment, find_start(key, member), member.offset)
    check_header(key, member, bytes(header))
    _refuse_end(key, member.offset + member.length, size)


async def stream_member(
    stream: StreamRange, key: StorageKey, member: Member, span: tuple[int, int] | None = None
) -> BlobStream:
    """Stream a member, or a span of it; its header comes with it, so that no erasure is between the
    two. Raises BlobMissing also if it was erased."""
    begin, end = (0, member.length) if span is None else (span[0], min(span[1], member.length))
    segment = StorageKey(key.bucket, member.segment)
    whole = await stream(segment, (find_start(key, member), member.offset + end))
    pieces = aiter(whole.pieces)
    first = await anext(pieces, b"")
    while len(first) < BLOCK and (piece := await anext(pieces, b"")):
        first += piece
    check_header(key, member, first)
    _refuse_end(key, BLOCK + end, whole.size)

    async def skip(count: int) -> AsyncIterator[bytes]:
        piece = first
        while piece:
            if rest := piece[count:]:
                yield rest
            count -= min(count, len(piece))
            piece = await anext(pieces, b"")

    return BlobStream(end - begin, None, skip(BLOCK + begin))


def find_start(key: StorageKey, member: Member) -> int:
    """Return where a member's header begins. Raises BlobUnreadable if it can have none."""
    if member.offset < BLOCK:
        raise BlobUnreadable(f"{key}: no member begins there")
    return member.offset - BLOCK


def _refuse_end(key: StorageKey, needed: int, read: int) -> None:
    if read < needed:
        raise BlobMissing(f"{key}: the segment ends before it")


def check_member(key: StorageKey, member: Member, read: memoryview) -> bytes:
    """Return the data behind a header that was read with it. Raises BlobMissing if the entry was
    erased, or is another than the key says; BlobUnreadable if there is none."""
    check_header(key, member, bytes(read[:BLOCK]))
    _refuse_end(key, BLOCK + member.length, len(read))
    return bytes(read[BLOCK:])


def check_header(key: StorageKey, member: Member, read: bytes) -> None:
    """Check the header before a member, as `check_member` does."""
    try:
        entry = read_header(read[:BLOCK], member.offset)
    except ValueError:
        raise BlobUnreadable(f"{key}: the segment has no member there") from None
    if entry.name == ERASED or entry.size != member.length:
        raise BlobMissing(f"{key} was erased, or is not there")
