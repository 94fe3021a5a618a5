"""The spool: files that are whole or counted, and folders of the dead."""

import errno
import os
from datetime import UTC, datetime
from pathlib import Path, PosixPath
from shutil import rmtree

import pytest

from inference_store.inference.producer_reports import encode as encode_report
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.folder_locks import bytes_of_others, dead_producers, made_folder
from inference_store.proxy.capture.prepared import Blob, Message, Prepared, Torn, decode, encode
from inference_store.proxy.capture.spool import Folder, Room

LIVING, DYING = "01a1ff47-0b17-7d6f-930b-cec9fa95422f", "01a1ff47-0b18-7f20-8f0b-cec9fa95422e"


def counts(producer: str = "p") -> Counts:
    return Counts(producer, producer, datetime.now(UTC))


def capture(sequence: int, size: int = 10) -> Prepared:
    return Prepared(
        producer="p",
        sequence=sequence,
        blobs=(Blob("k/data", "image/png", b"\0" * size), Blob("k/metadata", "x", b"")),
        messages=(Message(b"m/1", b"{}"), Message(b"m/2", b"")),
    )


def folder(root: Path, *, limit: int = 10**6, producer: str = "p") -> Folder:
    lock = made_folder(root, producer)
    return Folder(root, counts(producer), Room(limit), lock, fsync=True)


def test_a_capture_comes_back_as_it_was() -> None:
    assert decode(encode(capture(7))) == capture(7)


def test_no_beginning_and_no_change_of_a_file_is_taken_for_a_capture() -> None:
    raw = encode(capture(7, 3))
    for end in range(len(raw)):
        with pytest.raises(Torn):
            decode(raw[:end])
    for place in range(len(raw)):
        with pytest.raises(Torn):
            decode(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])


def test_each_capture_is_taken_once_and_gone_when_it_is_published(tmp_path: Path) -> None:
    spool = folder(tmp_path)
    assert all(spool.write(capture(number)) for number in range(1, 6))
    paths = [spool.take() for _ in range(5)]
    assert spool.take() is None
    assert spool.waiting == 5
    found = [spool.read(path) for path in paths if path is not None]
    assert sorted(each.sequence for each in found if each is not None) == [1, 2, 3, 4, 5]
    for path in paths:
        assert path is not None
        spool.remove(path)
    assert spool.waiting == 0
    assert spool.write(capture(6))
    assert spool.take() is not None
    spool.close()


def test_the_spool_is_bounded_and_room_comes_back(tmp_path: Path) -> None:
    size = len(encode(capture(1)))
    spool = folder(tmp_path, limit=2 * size)
    assert spool.write(capture(1))
    assert spool.write(capture(2))
    assert not spool.write(capture(3))
    path = spool.take()
    assert path is not None
    spool.remove(path)
    assert spool.write(capture(3))
    spool.close()


def test_a_disk_that_refuses_is_no_error(tmp_path: Path) -> None:
    spool = folder(tmp_path)
    (tmp_path / "p").rmdir()
    assert not spool.write(capture(1))
    spool.close()


def test_a_torn_file_is_counted_and_removed(tmp_path: Path) -> None:
    spool = folder(tmp_path)
    assert spool.write(capture(1))
    path = spool.take()
    assert path is not None
    path.write_bytes(path.read_bytes()[:-1])
    spool.counts.see()
    assert spool.read(path) is None
    assert spool.waiting == 0
    assert spool.counts.report().dropped == {"torn": 1}
    assert spool.take() is None
    spool.close()


def test_what_somebody_else_removed_is_counted(tmp_path: Path) -> None:
    spool = folder(tmp_path)
    assert spool.write(capture(1))
    (tmp_path / "p" / f"{1:020d}").unlink()
    assert spool.take() is None
    assert spool.waiting == 0
    assert spool.counts.report().dropped == {"torn": 1}
    spool.close()


def test_only_the_dead_are_inherited_from(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    living, dying = folder(tmp_path, producer=LIVING), folder(tmp_path, producer=DYING)
    assert dying.write(capture(41))
    (tmp_path / DYING / f"{42:020d}.part").write_bytes(b"half")
    assert list(dead_producers(tmp_path)) == []
    os.close(dying._lock_file)  # as the kernel does at its death
    ((producer, lock),) = dead_producers(tmp_path)
    assert producer == DYING
    assert list(dead_producers(tmp_path)) == []  # one heir alone
    found = Counts(DYING, "heir", datetime.now(UTC))
    heir = Folder(tmp_path, found, Room(10**6), lock, fsync=False)
    heir.look_through()
    report = found.report(spooled=heir.waiting)
    assert (report.seen, report.queued, report.dropped) == (2, 1, {"torn": 1})
    assert report.highest_sequence == 42
    path = heir.take()
    assert path is not None
    assert heir.read(path) == capture(41)
    heir.remove(path)
    assert not heir.is_settled  # it is not counted yet
    found.publish(2)
    assert heir.is_settled
    heir.close()
    assert {each.name for each in tmp_path.iterdir()} == {LIVING, f"{LIVING}.lock", "lost+found"}
    living.close()
    assert [each.name for each in tmp_path.iterdir()] == ["lost+found"]


def test_a_last_report_is_kept_until_it_is_sent(tmp_path: Path) -> None:
    spool = folder(tmp_path, producer=DYING)
    spool.keep_report(b"last")
    spool.close()
    ((producer, lock),) = dead_producers(tmp_path)
    heir = Folder(tmp_path, counts(producer), Room(100), lock, fsync=False)
    heir.look_through()
    assert heir.kept_report() == b"last"
    heir.forget_report()
    assert heir.kept_report() is None
    heir.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_report_that_was_being_written_is_read_or_gone(tmp_path: Path, is_whole: bool) -> None:
    """Else the folder would never be empty, and inherited again and again."""
    spool = folder(tmp_path, producer=DYING)
    report = encode_report(spool.counts.report(final=True))
    (tmp_path / DYING / "report.part").write_bytes(report if is_whole else report[:-1])
    spool.close()
    ((producer, lock),) = dead_producers(tmp_path)
    heir = Folder(tmp_path, counts(producer), Room(100), lock, fsync=False)
    heir.look_through()
    assert heir.kept_report() == (report if is_whole else None)
    heir.forget_report()
    heir.close()
    assert list(tmp_path.iterdir()) == []


def test_who_is_late_writes_into_no_other_file(tmp_path: Path) -> None:
    """A thread may remove a capture when the folder is let go already: its lock's number may be
    another file's then."""
    spool = folder(tmp_path)
    assert spool.write(capture(1))
    path = spool.take()
    assert path is not None
    spool.close()
    others = [(tmp_path / f"other{number}").open("w+b") for number in range(20)]
    spool.remove(path)
    assert all(not os.fstat(each.fileno()).st_size for each in others)
    for each in others:
        each.close()


class Stuck(PosixPath):
    """A file on a disk that is read-only."""

    def unlink(self, missing_ok: bool = False) -> None:
        del missing_ok
        raise OSError(errno.EROFS, "Read-only file system")


def test_a_disk_that_does_not_even_let_go_of_a_part_is_no_error(tmp_path: Path) -> None:
    spool = folder(tmp_path)
    (tmp_path / "p" / f"{1:020d}.part").mkdir()  # neither written nor removed as a file
    assert not spool.write(capture(1))
    assert spool.write(capture(2))
    assert spool.waiting == 1
    assert spool.take() is not None
    spool.close()


def test_a_torn_file_that_stays_is_counted_once(tmp_path: Path) -> None:
    spool = folder(tmp_path)
    assert spool.write(capture(1))
    path = spool.take()
    assert path is not None
    path.write_bytes(b"torn")
    spool.counts.see()
    assert spool.read(Stuck(path)) is None
    assert spool.counts.report().dropped == {"torn": 1}
    spool.counts.see()
    assert spool.write(capture(2))
    after = spool.take()
    assert after is not None
    assert after.name == f"{2:020d}"
    assert spool.take() is None
    spool.remove(after)
    spool.close()


def test_what_is_published_and_stays_is_not_published_again(tmp_path: Path) -> None:
    spool = folder(tmp_path)
    assert all(spool.write(capture(number)) for number in (1, 2))
    first = spool.take()
    assert first is not None
    spool.remove(Stuck(first))
    second = spool.take()
    assert second is not None
    assert second != first
    spool.remove(second)
    assert spool.waiting == 0
    assert spool.take() is None
    spool.close()


def test_a_part_that_stays_is_lost_once_however_often_a_process_begins(tmp_path: Path) -> None:
    first = folder(tmp_path)
    first.counts.see()
    (tmp_path / "p" / f"{1:020d}.part").mkdir()
    for _ in range(2):
        again = Folder(tmp_path, first.counts, Room(10**6), first._lock_file, fsync=False)
        again.look_through(own=True)
        first.counts.go_on(1, again.waiting)
    assert first.counts.report().dropped == {"process_ended": 1}
    assert first.counts.report().closes
    first.close()


def test_a_folder_that_somebody_removed_loses_what_was_in_it(tmp_path: Path) -> None:
    spool = folder(tmp_path)
    assert spool.write(capture(1))
    spool.counts.see()
    rmtree(tmp_path / "p")
    assert spool.take() is None
    assert (spool.waiting, spool.counts.report().dropped) == (0, {"torn": 1})
    spool.close()


def test_a_lock_that_cannot_be_opened_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    for producer in (LIVING, DYING):
        os.close(folder(tmp_path, producer=producer)._lock_file)
    (tmp_path / f"{LIVING}.lock").unlink()
    (tmp_path / f"{LIVING}.lock").mkdir()
    ((producer, lock),) = dead_producers(tmp_path)
    assert producer == DYING
    os.close(lock)


def test_bytes_of_a_folder_that_is_gone_are_nobodys(tmp_path: Path) -> None:
    spool = folder(tmp_path, producer=LIVING)
    assert spool.write(capture(1))
    assert bytes_of_others(tmp_path, []) == len(encode(capture(1)))
    rmtree(tmp_path / LIVING)
    assert bytes_of_others(tmp_path, []) == 0
    spool.close()
