"""One directory of several processes: what is bounded is all of it."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from inference_store.platform.metrics import SPOOL_TROUBLE
from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.folder_locks import make_folder
from inference_store.proxy.capture.prepared_capture import Blob, Message, PreparedCapture, encode
from inference_store.proxy.capture.spools import Spools
from tests.settings import make_settings

PRODUCERS = [f"01a1ff47-0b17-7d6f-930b-cec9fa9542{number:02}" for number in range(10, 13)]


def capture(producer: str, sequence: int) -> PreparedCapture:
    return PreparedCapture(
        producer=producer,
        sequence=sequence,
        blobs=(Blob("k/data", "image/png", b"\0" * 100),),
        messages=(Message(b"m/1", b"{}"),),
    )


SIZE = len(encode(capture(PRODUCERS[0], 1)))


def make_spools(root: Path, producer: str, captures: int) -> Spools:
    """Make the spools of a process; the directory may hold so many captures."""
    settings = make_settings(
        ProxySettings,
        proxy_upstream="http://up",
        proxy_spool="all",
        proxy_spool_directory=root,
        proxy_spool_bytes=captures * SIZE,
    )
    lock = make_folder(root, producer)
    return Spools(settings, Counts(producer, producer, datetime.now(UTC)), lock)


def open_spools(root: Path, producer: str, captures: int) -> Spools:
    opened = make_spools(root, producer, captures)
    opened.open()
    return opened


def count_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*/*"))


def fill(into: Spools, producer: str) -> int:
    """Write captures until the spool is full. Return how many fit."""
    number = 0
    while number < 100 and into.write(capture(producer, number + 1), half_full=True):
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
    assert count_bytes(tmp_path) == 5 * SIZE
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


def test_a_folder_that_cannot_be_looked_through_stays_free(tmp_path: Path) -> None:
    first, other = (open_spools(tmp_path, producer, 9) for producer in PRODUCERS[:2])
    assert first.write(capture(PRODUCERS[0], 1), half_full=True)
    assert other.write(capture(PRODUCERS[1], 1), half_full=True)
    release_locks(first)
    release_locks(other)
    odd = tmp_path / PRODUCERS[0] / f"{2:020d}"
    odd.symlink_to("nowhere")  # the disk cannot say what it is
    heir = open_spools(tmp_path, PRODUCERS[2], 9)
    heir.adopt()
    assert [spool.counts.producer for spool in heir.adopted] == [PRODUCERS[1]]
    assert heir._room.used == SIZE
    odd.unlink()
    heir.adopt()
    assert {spool.counts.producer for spool in heir.adopted} == set(PRODUCERS[:2])
    heir.close()


def test_without_its_folder_there_is_no_spool(tmp_path: Path) -> None:
    result = make_spools(tmp_path, PRODUCERS[0], 9)
    (tmp_path / PRODUCERS[0]).rmdir()
    trouble = SPOOL_TROUBLE._value.get()
    result.open()
    assert not result.is_on
    assert SPOOL_TROUBLE._value.get() == trouble + 1
    assert not result.write(capture(PRODUCERS[0], 1), half_full=True)
    result.adopt()
    assert (result.take(), result.own_waiting, result.adopted_waiting) == (None, 0, 0)
    result.close()


def test_captures_that_cannot_be_written_stop_nobody(tmp_path: Path) -> None:
    result = open_spools(tmp_path, PRODUCERS[0], 9)
    no_text: Any = object()
    odd = replace(capture(PRODUCERS[0], 1), blobs=(Blob(no_text, "image/png", b""),))
    assert not result.write(odd, half_full=True)
    assert result.write(capture(PRODUCERS[0], 2), half_full=True)
    result.close()
