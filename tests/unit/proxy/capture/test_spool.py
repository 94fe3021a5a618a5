"""The spool: segments that are whole or cut off, folders of the dead, and a limit of all of it."""

import errno
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PosixPath

import orjson
import pytest

from inference_store.inference.tar import BLOCK, END, Entry, iterate_entries
from inference_store.platform.metrics import SPOOL_TROUBLE
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.counts import CounterId, Counts, read_values
from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.capture.segments import Draft, Event, Segment, cut_segment, read_segment
from inference_store.proxy.capture.spool import (
    Folder,
    Spooled,
    Spools,
    lock_dead_producers,
    make_folder,
)
from inference_store.proxy.configuration import Rules
from tests.exchanges import CALL, exchange, request_body, response_body
from tests.settings import make_settings

from .captured import make_preparation

LIVING, DYING = "01a1ff47-0b17-7d6f-930b-cec9fa95422f", "01a1ff47-0b18-7f20-8f0b-cec9fa95422e"


def lay_out(segment: Segment, sequence: int, *data: bytes) -> Draft:
    preparation = make_preparation()
    data = data or (b"datum",)
    sample = exchange(request_body(*data), response_body(*(0.5 for _ in data)))
    chosen = preparation.choose(Work(sample, CALL, Rules(), "m"))
    assert chosen is not None
    return chosen.lay_out(segment, "p", sequence)


def make_segment(*sequences: int, packed: bool = True, data: tuple[bytes, ...] = ()) -> Segment:
    """Return a segment in memory, with an exchange of each sequence."""
    segment = Segment("m", prefix="captures", packed=packed, opened=0.0)
    for sequence in sequences:
        prepared = lay_out(segment, sequence, *data)
        segment.append(prepared)
    segment.close()
    return segment


def open_folder(root: Path, *, limit: int = 10**6, producer: str = "p") -> Folder:
    counts = Counts(producer, file=make_folder(root, producer))

    def has_room(size: int) -> bool:
        return counts.values[CounterId.SPOOL_BYTES] + size <= limit

    return Folder(root, counts, has_room, fsync=True)


def write(folder: Folder, segment: Segment) -> Spooled:
    """Write a segment that is in memory."""
    assert folder.open(segment)
    assert folder.append(segment, segment.tar, segment.exchanges)
    spooled = folder.close_segment(segment)
    assert spooled is not None
    return spooled


def append(folder: Folder, segment: Segment, draft: Draft) -> bool:
    """Write an exchange to a segment that has a file."""
    if not folder.append(segment, b"".join(draft.parts)):
        return False
    assert segment.append(draft) == 0
    return True


def count_waiting(folder: Folder) -> int:
    return folder.counts.values[CounterId.SPOOLED]


def see(folder: Folder, numbers: int) -> None:
    """Count so many exchanges as seen and given their numbers."""
    for _ in range(numbers):
        folder.counts.see()
        folder.counts.next_sequence()


def list_entries(tar: bytes) -> list[Entry]:
    return [entry for entry, _ in iterate_entries(io.BytesIO(tar))]


def list_sequences(spooled: Spooled) -> set[int]:
    return read_segment(spooled.path.read_bytes()).sequences


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Folder]:
    opened = open_folder(tmp_path)
    yield opened
    opened.close()


def die(folder: Folder) -> None:
    """Let the lock go, as the kernel does at its death."""
    os.close(folder.counts.file)


def inherit(root: Path) -> tuple[Folder, list[Spooled]]:
    """Take over the folder of the only producer that is dead."""
    ((producer, lock),) = lock_dead_producers(root)
    assert producer == DYING
    heir = Folder(root, Counts.stored(producer, lock), lambda _: True, fsync=False)
    spooled, sequences = heir.recover()
    heir.counts.inherit(sequences)
    return heir, spooled


def test_a_segment_is_a_tar_whose_keys_are_ranges_of_it() -> None:
    segment = make_segment(1, 2, data=(b"one", b"two"))
    with tarfile.open(fileobj=io.BytesIO(segment.tar)) as plain:
        names = plain.getnames()
    suffixes = ["data", "response", "metadata.json"]
    assert [name.partition(".")[2] for name in names] == suffixes * 4
    entries = {f"{segment.key}#{e.offset}+{e.size}": e for e in list_entries(segment.tar)}
    for event in read_segment(segment.tar).events:
        fields = event_fields(event)
        for field, suffix in zip(("data", "inference", "metadata"), suffixes, strict=True):
            entry = entries[fields[f"{field}_storage_key"]]
            assert entry.name == f"{fields['capture_id']}.{suffix}"


def event_fields(event: Event) -> dict[str, str]:
    fields: dict[str, str] = orjson.loads(event.value)
    return fields


@pytest.mark.parametrize("packed", [True, False])
def test_a_segment_torn_anywhere_keeps_its_whole_exchanges(packed: bool) -> None:
    segment = make_segment(7, 8, 9, packed=packed, data=(b"one", b"two"))
    whole = read_segment(segment.tar)
    assert (whole.events, whole.sequences) == (segment.events, {7, 8, 9})
    ends = [0]
    for size in range(len(segment.tar) + 1):
        contents = read_segment(segment.tar[:size])
        if contents.size != ends[-1]:
            ends.append(contents.size)
        assert contents.events == segment.events[: 2 * (len(ends) - 1)]
        assert contents.size <= size
    assert ends == [0, *sorted(set(ends[1:]))]
    assert ends[-1] + len(END) == len(segment.tar)
    assert len(ends) == 4


def test_a_damaged_exchange_costs_no_other() -> None:
    """Wherever a lost block is: the rest is put as a tar, and what was lost is erased in it."""
    segment = make_segment(7, 8, 9, data=(b"a datum", b"two"))
    whole = read_segment(segment.tar)
    for at in range(0, whole.size, BLOCK):
        torn = segment.tar[:at] + bytes(BLOCK) + segment.tar[at + BLOCK :]
        contents = read_segment(torn)
        lost = {7, 8, 9} - contents.sequences
        assert len(lost) == 1
        assert contents.events == [each for each in segment.events if each.sequence not in lost]
        cut = cut_segment(torn, contents)
        with tarfile.open(fileobj=io.BytesIO(cut)) as plain:
            names = plain.getnames()
        assert names.count("erased") == (lost != {9})
        assert [each.offset for each in list_entries(cut) if each.name != "erased"] == [
            each.offset for each in list_entries(segment.tar) if each.name in names
        ]


def test_a_segment_is_gone_when_it_is_published(spool: Folder) -> None:
    written = [write(spool, make_segment(number, number + 10)) for number in range(1, 6)]
    assert count_waiting(spool) == 10
    listed = set[int]().union(*map(list_sequences, written))
    assert listed == {*range(1, 6), *range(11, 16)}
    for spooled in written:
        spool.remove(spooled)
    assert count_waiting(spool) == spool.counts.values[CounterId.SPOOL_BYTES] == 0


def test_exchanges_are_on_disk_before_their_segment_is_closed(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, producer=DYING)
    segment = Segment("m", prefix="captures", packed=True, opened=0.0)
    assert folder.open(segment)
    see(folder, 2)
    for sequence in (1, 2):
        assert append(folder, segment, lay_out(segment, sequence))
    (path,) = tmp_path.glob("*/*.tar")
    path.write_bytes(path.read_bytes() + b"half of the next")
    segment.close()
    die(folder)
    heir, (spooled,) = inherit(tmp_path)
    assert list_sequences(spooled) == {1, 2}
    assert spooled.exchanges == count_waiting(heir) == heir.counts.report().seen == 2
    heir.remove(spooled)
    heir.counts.publish(2, 2)
    heir.close(is_settled=True)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_what_was_written(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, limit=6000)
    segment = Segment("m", prefix="captures", packed=True, opened=0.0)
    assert folder.open(segment)
    assert append(folder, segment, lay_out(segment, 1))
    before = segment.size
    assert not append(folder, segment, lay_out(segment, 2, b"x" * 6000))
    assert (segment.size, segment.exchanges) == (before, 1)
    spooled = folder.close_segment(segment)
    assert spooled is not None
    assert list_sequences(spooled) == {1}
    empty = Segment("m", prefix="captures", packed=True, opened=0.0)
    assert folder.open(empty)
    assert folder.close_segment(empty) is None
    assert list(tmp_path.glob("p/*.tar")) == [spooled.path]
    folder.close()


def test_only_the_dead_are_inherited_from(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    living, dying = open_folder(tmp_path, producer=LIVING), open_folder(tmp_path, producer=DYING)
    see(dying, 41)
    dying.counts.publish(38, 38)
    write(dying, make_segment(41))
    (tmp_path / DYING / "half.tar").write_bytes(b"half")
    assert list(lock_dead_producers(tmp_path)) == []
    die(dying)
    heir, (spooled,) = inherit(tmp_path)
    assert list(lock_dead_producers(tmp_path)) == []  # one heir alone
    report = heir.counts.report()
    assert (report.producer, report.reporter, report.seen) == (DYING, DYING, 41)
    assert (report.queued, report.published, report.dropped) == (1, 38, {"process_ended": 2})
    assert report.closes
    assert report.highest_sequence == 41
    assert list_sequences(spooled) == {41}
    heir.remove(spooled)
    assert heir.counts.queued  # it is not counted yet
    heir.counts.publish(1, 1)
    assert not heir.counts.queued
    heir.close(is_settled=True)
    assert {entry.name for entry in tmp_path.iterdir()} == {LIVING, f"{LIVING}.lock", "lost+found"}
    living.close(is_settled=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["lost+found"]


def test_heirs_go_on_where_the_one_before_was_killed(tmp_path: Path) -> None:
    """Whatever is killed after what was stored: the books close, and reports get higher numbers."""
    first = open_folder(tmp_path, producer=DYING)
    see(first, 3)
    for number in (1, 2):
        write(first, make_segment(number))
    numbers = [first.counts.report().number]
    die(first)
    for published in (1, 2):
        heir, spooled = inherit(tmp_path)
        assert len(spooled) == 3 - published
        heir.remove(spooled[0])
        heir.counts.publish(1, 1)
        heir.counts.store()
        report = heir.counts.report()
        assert (report.seen, report.published, report.dropped) == (
            3,
            published,
            {"process_ended": 1},
        )
        assert report.closes
        numbers.append(report.number)
        die(heir)
    assert numbers == sorted(set(numbers))


def test_captures_newer_than_the_stored_numbers_are_counted(tmp_path: Path) -> None:
    """A power failure may take what was stored, or a part of it."""
    for stored in (0, 1):
        folder = open_folder(tmp_path, producer=DYING)
        see(folder, stored)
        folder.counts.publish(stored, stored)
        for number in (40, 41):
            write(folder, make_segment(number))
        die(folder)
        heir, spooled = inherit(tmp_path)
        report = heir.counts.report()
        assert (report.seen, report.queued) == (2 + stored, 2)
        assert report.closes
        assert report.highest_sequence == 41
        for each in spooled:
            heir.remove(each)
        heir.close(is_settled=True)


def test_files_of_others_keep_the_numbers_of_their_folder(tmp_path: Path) -> None:
    """They would be counted from the start otherwise when it is adopted again."""
    folder = open_folder(tmp_path, producer=DYING)
    see(folder, 7)
    folder.counts.publish(7, 7)
    (tmp_path / DYING / "readme.txt").touch()
    folder.close(is_settled=True)
    heir, spooled = inherit(tmp_path)
    assert (spooled, heir.counts.report().published) == ([], 7)
    heir.close()


def test_a_late_writer_writes_into_no_other_file(tmp_path: Path) -> None:
    """A thread may remove a segment when the folder is let go already: its lock's number may be
    another file's then."""
    spool = open_folder(tmp_path)
    spooled = write(spool, make_segment(1))
    spool.close()
    others = [(tmp_path / f"other{number}").open("w+b") for number in range(20)]
    spool.remove(spooled)
    spool.counts.store()
    assert all(not os.fstat(other.fileno()).st_size for other in others)
    for other in others:
        other.close()


class Stuck(PosixPath):
    """A file on a disk that is read-only."""

    def unlink(self, missing_ok: bool = False) -> None:
        del missing_ok
        raise OSError(errno.EROFS, "Read-only file system")


def test_counts_a_segment_as_published_if_removing_fails(spool: Folder) -> None:
    spooled = write(spool, make_segment(1))
    spool.remove(replace(spooled, path=Stuck(spooled.path)))
    assert count_waiting(spool) == 0


PRODUCERS = [f"01a1ff47-0b17-7d6f-930b-cec9fa9542{number:02}" for number in range(10, 13)]
SIZE = len(make_segment(1).tar)


def make_spools(root: Path, producer: str, captures: int) -> Spools:
    """Make the spools of a process; the directory may hold so many captures."""
    settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        proxy_spool="all",
        proxy_spool_directory=root,
        proxy_spool_bytes=captures * SIZE,
    )
    return Spools(settings, Counts(producer, file=make_folder(root, producer)))


def open_spools(root: Path, producer: str, captures: int) -> Spools:
    opened = make_spools(root, producer, captures)
    opened.open()
    return opened


def fill(into: Spools) -> list[Spooled]:
    """Write captures until the spool is full. Return those that fit."""
    written: list[Spooled] = []
    while len(written) < 100 and (spooled := into.write(make_segment(len(written) + 1))):
        written.append(spooled)
    return written


def release_locks(of: Spools) -> None:
    for counts in of._list_counts():
        os.close(counts.file)  # as the kernel does at its death


@pytest.mark.parametrize("is_dead", [False, True])
def test_the_limit_is_of_all_folders(tmp_path: Path, is_dead: bool) -> None:
    first = open_spools(tmp_path, PRODUCERS[0], 3)
    assert len(fill(first)) == 3
    if is_dead:
        release_locks(first)
    second = open_spools(tmp_path, PRODUCERS[1], 5)
    spooled = fill(second)
    assert len(spooled) == 2
    adopted = second.adopt()
    assert len(adopted) == (3 if is_dead else 0)
    assert not fill(second)
    third = open_spools(tmp_path, PRODUCERS[2], 5)
    assert not fill(third)
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*.tar")) == 5 * SIZE
    removed = (adopted or spooled)[0]
    removed.folder.remove(removed)
    # room comes back, for whoever is first
    removed.folder.counts.store()
    assert len(fill(third)) == 1
    assert not fill(second)
    for spool in (second, third) if is_dead else (first, second, third):
        spool.close(is_reported=False)


def test_counts_a_folder_of_unknown_size_when_it_is_found(tmp_path: Path) -> None:
    """A power failure leaves such a folder."""
    first = open_spools(tmp_path, PRODUCERS[0], 3)
    assert len(fill(first)) == 3
    release_locks(first)
    lock = tmp_path / f"{PRODUCERS[0]}.lock"
    lock.write_bytes(b"")
    second = open_spools(tmp_path, PRODUCERS[1], 5)
    second.adopt()
    assert len(fill(second)) == 2
    assert read_values(lock.read_bytes())[CounterId.SPOOL_BYTES] == 3 * SIZE
    second.close(is_reported=False)


def test_without_its_folder_there_is_no_spool(tmp_path: Path) -> None:
    result = make_spools(tmp_path, PRODUCERS[0], 9)
    (tmp_path / PRODUCERS[0]).rmdir()
    trouble = SPOOL_TROUBLE._value.get()
    result.open()
    assert result.own is None
    assert SPOOL_TROUBLE._value.get() == trouble + 1
    assert result.write(make_segment(1)) is None
    assert result.find_folder(half_full=True) is None
    assert result.adopt() == []
    assert not result.has_queued
    result.close(is_reported=True)
