"""One directory of several processes: what is bounded is all of it."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from inference_store.proxy.capture.counts import Counts
from inference_store.proxy.capture.prepared import Blob, Message, Prepared, encode
from inference_store.proxy.capture.spool import made_folder
from inference_store.proxy.capture.spools import Spools
from inference_store.store.settings import ProxySettings

PRODUCERS = [f"01a1ff47-0b17-7d6f-930b-cec9fa9542{number:02}" for number in range(10, 13)]


def capture(producer: str, sequence: int) -> Prepared:
    return Prepared(
        producer=producer,
        sequence=sequence,
        blobs=(Blob("k/data", "image/png", b"\0" * 100),),
        messages=(Message(b"m/1", b"{}"),),
    )


SIZE = len(encode(capture(PRODUCERS[0], 1)))


def spools(root: Path, producer: str, captures: int) -> Spools:
    """Of a process; the directory may hold so many captures."""
    settings = ProxySettings(
        _env_file=None,  # type: ignore[call-arg]
        proxy_upstream="http://up",
        proxy_spool="all",
        proxy_spool_directory=root,
        proxy_spool_bytes=captures * SIZE,
    )
    lock = made_folder(root, producer)
    made = Spools(settings, Counts(producer, producer, datetime.now(UTC)), lock)
    made.open()
    return made


def written(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("*/*"))


def fill(into: Spools, producer: str) -> int:
    """How many captures it takes."""
    number = 0
    while number < 100 and into.write(capture(producer, number + 1), half_full=True):
        number += 1
    return number


@pytest.mark.parametrize("is_dead", [False, True])
def test_the_limit_is_of_all_folders(tmp_path: Path, is_dead: bool) -> None:
    first = spools(tmp_path, PRODUCERS[0], 3)
    assert fill(first, PRODUCERS[0]) == 3
    if is_dead:
        for folder in first._all():
            os.close(folder._lock_file)  # as the kernel does at its death
    second = spools(tmp_path, PRODUCERS[1], 5)
    assert fill(second, PRODUCERS[1]) == 2
    second.adopt()
    assert fill(second, PRODUCERS[1]) == 0
    third = spools(tmp_path, PRODUCERS[2], 5)
    assert fill(third, PRODUCERS[2]) == 0
    assert written(tmp_path) == 5 * SIZE
    taken = second.take()
    assert taken is not None
    taken.folder.remove(taken.path)
    # room comes back, for whoever is first
    assert fill(third, PRODUCERS[2]) == 1
    assert fill(second, PRODUCERS[1]) == 0
    for each in (second, third) if is_dead else (first, second, third):
        each.close()


def test_a_folder_whose_bytes_are_not_told_is_counted_when_it_is_found(tmp_path: Path) -> None:
    """As after a power cut, or of an older version."""
    first = spools(tmp_path, PRODUCERS[0], 3)
    assert fill(first, PRODUCERS[0]) == 3
    for folder in first._all():
        os.close(folder._lock_file)
    (tmp_path / f"{PRODUCERS[0]}.lock").write_bytes(b"")
    second = spools(tmp_path, PRODUCERS[1], 5)
    second.adopt()
    assert fill(second, PRODUCERS[1]) == 2
    assert int((tmp_path / f"{PRODUCERS[0]}.lock").read_bytes()) == 3 * SIZE
    second.close()
