"""The spool: segments that are whole or cut off, folders of the dead, and a limit of all of it."""

import errno
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path, PosixPath

import orjson
import pytest

from inference_store.inference.producer_reports import decode as decode_report
from inference_store.inference.producer_reports import encode as encode_report
from inference_store.inference.tar import BLOCK, END, Entry, iterate_entries
from inference_store.platform.metrics import SPOOL_TROUBLE
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.registrations import Work
from inference_store.proxy.capture.segments import Draft, Event, Segment, cut_segment, read_segment
from inference_store.proxy.capture.spool import (
    Folder,
    Room,
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


def make_counts(producer: str = "p") -> Counts:
    return Counts(producer, producer, datetime.now(UTC))


def lay_out(segment: Segment, sequence: int, *data: bytes) -> Draft:
    preparation = make_preparation()
    data = data or (b"datum",)
    sample = exchange(request_body(*data), response_body(*(0.5 for _ in data)))
    chosen = preparation.choose(Work(sample, CALL, Rules(), "m"))
    assert chosen is not None
    return preparation.prepare(chosen, segment, "p", sequence)


def make_segment(*sequences: int, packed: bool = True, data: tuple[bytes, ...] = ()) -> Segment:
    """Return a segment in memory, with an exchange of each sequence."""
    segment = Segment("m", prefix="captures", packed=packed, opened=0.0)
    for sequence in sequences:
        prepared = lay_out(segment, sequence, *data)
        segment.append(prepared)
    segment.close()
    return segment


def open_folder(root: Path, *, limit: int = 10**6, producer: str = "p") -> Folder:
    lock = make_folder(root, producer)
    return Folder(root, make_counts(producer), Room(limit), lock, fsync=True)


def take(folder: Folder) -> Spooled:
    return folder.unclaimed.popleft()


def list_entries(tar: bytes) -> list[Entry]:
    return [entry for entry, _ in iterate_entries(io.BytesIO(tar))]


def list_sequences(spooled: Spooled) -> set[int]:
    return read_segment(spooled.path.read_bytes()).sequences


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Folder]:
    opened = open_folder(tmp_path)
    yield opened
    opened.close()


def inherit(root: Path, *, limit: int = 10**6) -> Folder:
    """Take over the folder of the only producer that is dead."""
    ((producer, lock),) = lock_dead_producers(root)
    assert producer == DYING
    heir = Folder(root, Counts(producer, "heir", datetime.now(UTC)), Room(limit), lock, fsync=False)
    heir.recover()
    return heir


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


def test_each_segment_is_taken_once_and_gone_when_it_is_published(spool: Folder) -> None:
    assert all(spool.write(make_segment(number, number + 10)) for number in range(1, 6))
    taken = [take(spool) for _ in range(5)]
    assert not spool.unclaimed
    assert spool.waiting == 10
    listed = set[int]().union(*map(list_sequences, taken))
    assert listed == {*range(1, 6), *range(11, 16)}
    for spooled in taken:
        spool.remove(spooled)
    assert spool.waiting == 0
    assert spool.write(make_segment(6))
    take(spool)


def test_exchanges_are_on_disk_before_their_segment_is_closed(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, producer=DYING)
    segment = Segment("m", prefix="captures", packed=True, opened=0.0)
    assert folder.open(segment)
    for sequence in (1, 2):
        assert folder.append(segment, lay_out(segment, sequence))
    assert not folder.unclaimed
    (path,) = tmp_path.glob("*/*.tar")
    path.write_bytes(path.read_bytes() + b"half of the next")
    segment.close()
    os.close(folder._lock_file)  # as the kernel does at its death
    heir = inherit(tmp_path)
    spooled = take(heir)
    assert list_sequences(spooled) == {1, 2}
    assert spooled.exchanges == heir.waiting == heir.counts.report().seen == 2
    heir.remove(spooled)
    heir.counts.publish(2, 2)
    heir.close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_what_was_written(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, limit=6000)
    segment = Segment("m", prefix="captures", packed=True, opened=0.0)
    assert folder.open(segment)
    assert folder.append(segment, lay_out(segment, 1))
    before = segment.size
    assert not folder.append(segment, lay_out(segment, 2, b"x" * 6000))
    assert (segment.size, segment.exchanges) == (before, 1)
    folder.close_segment(segment)
    assert list_sequences(take(folder)) == {1}
    folder.close()


def test_only_the_dead_are_inherited_from(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    living, dying = open_folder(tmp_path, producer=LIVING), open_folder(tmp_path, producer=DYING)
    assert dying.write(make_segment(41))
    (tmp_path / DYING / "half.tar").write_bytes(b"half")
    assert list(lock_dead_producers(tmp_path)) == []
    os.close(dying._lock_file)  # as the kernel does at its death
    heir = inherit(tmp_path)
    assert list(lock_dead_producers(tmp_path)) == []  # one heir alone
    report = heir.counts.report(spooled=heir.waiting)
    assert (report.seen, report.queued, report.dropped) == (1, 1, {})
    assert report.highest_sequence == 41
    spooled = take(heir)
    assert list_sequences(spooled) == {41}
    heir.remove(spooled)
    assert not heir.is_settled  # it is not counted yet
    heir.counts.publish(1, 1)
    assert heir.is_settled
    heir.close()
    assert {entry.name for entry in tmp_path.iterdir()} == {LIVING, f"{LIVING}.lock", "lost+found"}
    living.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["lost+found"]


def test_a_last_report_is_kept_until_it_is_sent(tmp_path: Path) -> None:
    spool = open_folder(tmp_path, producer=DYING)
    spool.store_report(b"last")
    spool.close()
    heir = inherit(tmp_path)
    assert heir.read_stored_report() == b"last"
    heir.remove_report()
    assert heir.read_stored_report() is None
    heir.close()
    assert list(tmp_path.iterdir()) == []


def test_a_report_that_was_being_written_is_read_or_gone(tmp_path: Path) -> None:
    """Else the folder would never be empty, and inherited again and again."""
    for is_whole in (True, False):
        spool = open_folder(tmp_path, producer=DYING)
        report = encode_report(spool.counts.report(final=True))
        (tmp_path / DYING / "report.part").write_bytes(report if is_whole else report[:-1])
        spool.close()
        heir = inherit(tmp_path)
        assert heir.read_stored_report() == (report if is_whole else None)
        heir.remove_report()
        heir.close()
        assert list(tmp_path.iterdir()) == []


def test_what_an_heir_published_is_known_to_the_next_one(tmp_path: Path) -> None:
    first = open_folder(tmp_path, producer=DYING)
    assert first.write(make_segment(1, 2))
    first.store_report(b"last")
    first.close()
    heir = inherit(tmp_path)
    heir.remove(take(heir))
    heir.counts.publish(2, 2)
    heir.note_published()
    os.close(heir._lock_file)  # as the kernel does at its death
    next_heir = inherit(tmp_path)
    assert next_heir.read_stored_report() == b"last"
    next_heir.remove_report()
    stored = decode_report(next_heir.read_stored_report() or b"")
    assert (stored.producer, stored.reporter, stored.published) == (DYING, "heir", 2)
    next_heir.remove_report()
    next_heir.close()
    assert list(tmp_path.iterdir()) == []


def test_a_late_writer_writes_into_no_other_file(tmp_path: Path) -> None:
    """A thread may remove a segment when the folder is let go already: its lock's number may be
    another file's then."""
    spool = open_folder(tmp_path)
    assert spool.write(make_segment(1))
    spooled = take(spool)
    spool.close()
    others = [(tmp_path / f"other{number}").open("w+b") for number in range(20)]
    spool.remove(spooled)
    assert all(not os.fstat(other.fileno()).st_size for other in others)
    for other in others:
        other.close()


class Stuck(PosixPath):
    """A file on a disk that is read-only."""

    def unlink(self, missing_ok: bool = False) -> None:
        del missing_ok
        raise OSError(errno.EROFS, "Read-only file system")


def test_does_not_publish_again_if_removing_fails(spool: Folder) -> None:
    assert all(spool.write(make_segment(number)) for number in (1, 2))
    first = take(spool)
    spool.remove(replace(first, path=Stuck(first.path)))
    second = take(spool)
    assert second.path != first.path
    spool.remove(second)
    assert spool.waiting == 0
    assert not spool.unclaimed


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
    return Spools(settings, make_counts(producer), make_folder(root, producer))


def open_spools(root: Path, producer: str, captures: int) -> Spools:
    opened = make_spools(root, producer, captures)
    opened.open()
    return opened


def fill(into: Spools) -> int:
    """Write captures until the spool is full. Return how many fit."""
    number = 0
    while number < 100 and into.write(make_segment(number + 1)):
        number += 1
    return number


def release_locks(of: Spools) -> None:
    for folder in of._list_folders():
        os.close(folder._lock_file)  # as the kernel does at its death


@pytest.mark.parametrize("is_dead", [False, True])
def test_the_limit_is_of_all_folders(tmp_path: Path, is_dead: bool) -> None:
    first = open_spools(tmp_path, PRODUCERS[0], 3)
    assert fill(first) == 3
    if is_dead:
        release_locks(first)
    second = open_spools(tmp_path, PRODUCERS[1], 5)
    assert fill(second) == 2
    second.adopt()
    assert fill(second) == 0
    third = open_spools(tmp_path, PRODUCERS[2], 5)
    assert fill(third) == 0
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) == 5 * SIZE
    spooled = second.take()
    assert spooled is not None
    spooled.folder.remove(spooled)
    # room comes back, for whoever is first
    assert fill(third) == 1
    assert fill(second) == 0
    for spool in (second, third) if is_dead else (first, second, third):
        spool.close()


def test_counts_a_folder_of_unknown_size_when_it_is_found(tmp_path: Path) -> None:
    """A power cut or an older version leaves such a folder."""
    first = open_spools(tmp_path, PRODUCERS[0], 3)
    assert fill(first) == 3
    release_locks(first)
    (tmp_path / f"{PRODUCERS[0]}.lock").write_bytes(b"")
    second = open_spools(tmp_path, PRODUCERS[1], 5)
    second.adopt()
    assert fill(second) == 2
    assert int((tmp_path / f"{PRODUCERS[0]}.lock").read_bytes()) == 3 * SIZE
    second.close()


def test_without_its_folder_there_is_no_spool(tmp_path: Path) -> None:
    result = make_spools(tmp_path, PRODUCERS[0], 9)
    (tmp_path / PRODUCERS[0]).rmdir()
    trouble = SPOOL_TROUBLE._value.get()
    result.open()
    assert not result.is_on
    assert SPOOL_TROUBLE._value.get() == trouble + 1
    assert not result.write(make_segment(1))
    assert result.find_folder(half_full=True) is None
    result.adopt()
    assert (result.take(), result.own_waiting, result.adopted_waiting) == (None, 0, 0)
    result.close()
