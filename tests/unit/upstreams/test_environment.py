"""An environment is named for what makes it, and what cannot be made says why in a sentence."""

import sys
from pathlib import Path

import pytest

from tests.servers.versions import MissingServer
from tests.upstreams.environment import HERE, run_to_build, version_of

LOCKS = sorted(HERE.glob("*.lock"))
READERS = HERE.parent / "readers" / "requirements.lock"


def test_another_lock_is_another_environment(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text("one==1")
    first = version_of(lock)
    assert version_of(lock) == first
    lock.write_text("one==2")
    assert version_of(lock) != first


def test_a_failed_step_is_a_sentence() -> None:
    fails = "import sys; sys.exit('no network\\nhere.')"
    with pytest.raises(MissingServer, match=r"^python\S* failed: no network here$"):
        run_to_build((sys.executable, "-c", fails))
    with pytest.raises(MissingServer, match="could not be run"):
        run_to_build(("/nowhere/uv", "venv"))


@pytest.mark.parametrize("lock", [*LOCKS, READERS], ids=lambda lock: lock.parent.name + lock.name)
def test_every_package_is_locked_by_its_hashes(lock: Path) -> None:
    lines = lock.read_text().splitlines()
    packages = [line for line in lines if not line.startswith((" ", "#"))]
    assert packages
    assert all("==" in line and line.endswith("\\") for line in packages)
    assert not any("://" in line for line in lines)


def test_every_lock_is_known() -> None:
    assert [lock.stem for lock in LOCKS] == ["huggingface", "kserve", "requirements", "triton"]
