"""The spool: files that are whole or counted, folders of the dead, and a limit of all of it."""

import errno
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path, PosixPath
from shutil import rmtree

import pytest

from inference_store.inference.producer_reports import encode as encode_report
from inference_store.platform.metrics import SPOOL_TROUBLE
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.prepared_capture import (
    Blob,
    Message,
    PreparedCapture,
    TornFile,
    decode,
    encode,
)
from inference_store.proxy.capture.spool import (
    Folder,
    Room,
    Spools,
    lock_dead_producers,
    make_folder,
)
from tests.settings import make_settings

LIVING, DYING = "01a1ff47-0b17-7d6f-930b-cec9fa95422f", "01a1ff47-0b18-7f20-8f0b-cec9fa95422e"


def make_counts(producer: str = "p") -> Counts:
    return Counts(producer, producer, datetime.now(UTC))


def capture(sequence: int, size: int = 10, *, producer: str = "p") -> PreparedCapture:
    return PreparedCapture(
        producer=producer,
        sequence=sequence,
        blobs=(Blob("k/data", "image/png", b"\0" * size), Blob("k/metadata", "x", b"")),
        messages=(Message(b"m/1", b"{}"), Message(b"m/2", b"")),
    )


def open_folder(root: Path, *, limit: int = 10**6, producer: str = "p") -> Folder:
    lock = make_folder(root, producer)
    return Folder(root, make_counts(producer), Room(limit), lock, fsync=True)


def take(folder: Folder) -> Path:
    path = folder.take()
    assert path is not None
    return path


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


def test_rejects_truncated_and_changed_files() -> None:
    raw = encode(capture(7, 3))
    for end in range(len(raw)):
        with pytest.raises(TornFile):
            decode(raw[:end])
    for position in range(len(raw)):
        with pytest.raises(TornFile):
            decode(raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :])


def test_each_capture_is_taken_once_and_gone_when_it_is_published(spool: Folder) -> None:
    assert all(spool.write(capture(number)) for number in range(1, 6))
    paths = [take(spool) for _ in range(5)]
    assert spool.take() is None
    assert spool.waiting == 5
    listed = [spool.read(path) for path in paths]
    assert sorted(stored.sequence for stored in listed if stored is not None) == [1, 2, 3, 4, 5]
    for path in paths:
        spool.remove(path)
    assert spool.waiting == 0
    assert spool.write(capture(6))
    assert spool.take() is not None


def test_a_torn_file_is_counted_and_removed(spool: Folder, tmp_path: Path) -> None:
    assert spool.write(capture(1))
    path = take(spool)
    path.write_bytes(path.read_bytes()[:-1])
    spool.counts.see()
    assert spool.read(path) is None
    assert spool.waiting == 0
    assert spool.counts.report().dropped == {"torn": 1}
    assert spool.take() is None
    # and so is one whose folder is removed by hand
    assert spool.write(capture(2))
    spool.counts.see()
    rmtree(tmp_path / "p")
    assert spool.read(take(spool)) is None
    assert (spool.waiting, spool.counts.report().dropped) == (0, {"torn": 2})


def test_only_the_dead_are_inherited_from(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    living, dying = open_folder(tmp_path, producer=LIVING), open_folder(tmp_path, producer=DYING)
    assert dying.write(capture(41))
    (tmp_path / DYING / f"{42:020d}.part").write_bytes(b"half")
    assert list(lock_dead_producers(tmp_path)) == []
    os.close(dying._lock_file)  # as the kernel does at its death
    heir = inherit(tmp_path)
    assert list(lock_dead_producers(tmp_path)) == []  # one heir alone
    report = heir.counts.report(spooled=heir.waiting)
    assert (report.seen, report.queued, report.dropped) == (2, 1, {"torn": 1})
    assert report.highest_sequence == 42
    path = take(heir)
    assert heir.read(path) == capture(41)
    heir.remove(path)
    assert not heir.is_settled  # it is not counted yet
    heir.counts.publish(2)
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


def test_a_late_writer_writes_into_no_other_file(tmp_path: Path) -> None:
    """A thread may remove a capture when the folder is let go already: its lock's number may be
    another file's then."""
    spool = open_folder(tmp_path)
    assert spool.write(capture(1))
    path = take(spool)
    spool.close()
    others = [(tmp_path / f"other{number}").open("w+b") for number in range(20)]
    spool.remove(path)
    assert all(not os.fstat(other.fileno()).st_size for other in others)
    for other in others:
        other.close()


class Stuck(PosixPath):
    """A file on a disk that is read-only."""

    def unlink(self, missing_ok: bool = False) -> None:
        del missing_ok
        raise OSError(errno.EROFS, "Read-only file system")


def test_a_torn_file_that_stays_is_counted_once(spool: Folder) -> None:
    assert spool.write(capture(1))
    path = take(spool)
    path.write_bytes(b"torn")
    spool.counts.see()
    assert spool.read(Stuck(path)) is None
    assert spool.counts.report().dropped == {"torn": 1}
    spool.counts.see()
    assert spool.write(capture(2))
    after = take(spool)
    assert after.name == f"{2:020d}"
    assert spool.take() is None
    spool.remove(after)


def test_does_not_publish_again_if_removing_fails(spool: Folder) -> None:
    assert all(spool.write(capture(number)) for number in (1, 2))
    first = take(spool)
    spool.remove(Stuck(first))
    second = take(spool)
    assert second != first
    spool.remove(second)
    assert spool.waiting == 0
    assert spool.take() is None


def test_counts_a_leftover_part_as_lost_once(tmp_path: Path) -> None:
    first = open_folder(tmp_path)
    first.counts.see()
    (tmp_path / "p" / f"{1:020d}.part").mkdir()
    for _ in range(2):
        again = Folder(tmp_path, first.counts, Room(10**6), first._lock_file, fsync=False)
        again.recover(own=True)
        first.counts.go_on(1, again.waiting)
    assert first.counts.report().dropped == {"process_ended": 1}
    assert first.counts.report().closes
    first.close()


PRODUCERS = [f"01a1ff47-0b17-7d6f-930b-cec9fa9542{number:02}" for number in range(10, 13)]
SIZE = len(encode(capture(1, producer=PRODUCERS[0])))


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


def fill(into: Spools, producer: str) -> int:
    """Write captures until the spool is full. Return how many fit."""
    number = 0
    while number < 100 and into.write(capture(number + 1, producer=producer), half_full=True):
        number += 1
    return number


def release_locks(of: Spools) -> None:
    for folder in of._list_folders():
        os.close(folder._lock_file)  # as the kernel does at its death


@pytest.mark.parametrize("is_dead", [False, True])
def test_the_limit_is_of_all_folders(tmp_path: Path, is_dead: bool) -> None:
    first = open_spools(tmp_path, PRODUCERS[0], 3)
    assert fill(first, PRODUCERS[0]) == 3
    if is_dead:
        release_locks(first)
    second = open_spools(tmp_path, PRODUCERS[1], 5)
    assert fill(second, PRODUCERS[1]) == 2
    second.adopt()
    assert fill(second, PRODUCERS[1]) == 0
    third = open_spools(tmp_path, PRODUCERS[2], 5)
    assert fill(third, PRODUCERS[2]) == 0
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) == 5 * SIZE
    spooled = second.take()
    assert spooled is not None
    spooled.folder.remove(spooled.path)
    # room comes back, for whoever is first
    assert fill(third, PRODUCERS[2]) == 1
    assert fill(second, PRODUCERS[1]) == 0
    for spool in (second, third) if is_dead else (first, second, third):
        spool.close()


def test_counts_a_folder_of_unknown_size_when_it_is_found(tmp_path: Path) -> None:
    """A power cut or an older version leaves such a folder."""
    first = open_spools(tmp_path, PRODUCERS[0], 3)
    assert fill(first, PRODUCERS[0]) == 3
    release_locks(first)
    (tmp_path / f"{PRODUCERS[0]}.lock").write_bytes(b"")
    second = open_spools(tmp_path, PRODUCERS[1], 5)
    second.adopt()
    assert fill(second, PRODUCERS[1]) == 2
    assert int((tmp_path / f"{PRODUCERS[0]}.lock").read_bytes()) == 3 * SIZE
    second.close()


def test_without_its_folder_there_is_no_spool(tmp_path: Path) -> None:
    result = make_spools(tmp_path, PRODUCERS[0], 9)
    (tmp_path / PRODUCERS[0]).rmdir()
    trouble = SPOOL_TROUBLE._value.get()
    result.open()
    assert not result.is_on
    assert SPOOL_TROUBLE._value.get() == trouble + 1
    assert not result.write(capture(1, producer=PRODUCERS[0]), half_full=True)
    result.adopt()
    assert (result.take(), result.own_waiting, result.adopted_waiting) == (None, 0, 0)
    result.close()
