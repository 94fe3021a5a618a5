"""Finding the version before this schema."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.upgrade.version import find_version_before


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with schema 0001 twice, then 0002 twice."""
    root = tmp_path / "repository"
    (root / "migrations" / "versions").mkdir(parents=True)
    (root / "services").mkdir()
    run_git(root, "init", "-q")
    for number, name in enumerate(("0001_a.py", None, "0002_b.py", None)):
        if name:
            (root / "migrations" / "versions" / name).write_text("")
        (root / "services" / "code.py").write_text(f"{number}")
        run_git(root, "add", ".")
        identity = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        run_git(root, *identity, "commit", "-q", "-m", str(number))
    return root


def run_git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(root), *arguments], check=True)


def test_the_newest_commit_with_another_schema(repository: Path, tmp_path: Path) -> None:
    result = find_version_before(tmp_path / "found", root=repository)
    assert result is not None
    assert result.name.endswith("(schema 0001)")
    assert (result.source / "services" / "code.py").read_text() == "1"


def test_the_worktree_counts_before_it_is_committed(repository: Path, tmp_path: Path) -> None:
    (repository / "migrations" / "versions" / "0003_c.py").write_text("")
    result = find_version_before(tmp_path / "found", root=repository)
    assert result is not None
    assert (result.source / "services" / "code.py").read_text() == "3"


def test_a_higher_number_is_no_older_schema(repository: Path, tmp_path: Path) -> None:
    for script in (repository / "migrations" / "versions").iterdir():
        script.unlink()
    (repository / "migrations" / "versions" / "0001_initial.py").write_text("")
    assert find_version_before(tmp_path / "found", root=repository) is None


def test_a_source_archive_has_no_history(repository: Path, tmp_path: Path) -> None:
    subprocess.run(["rm", "-r", str(repository / ".git")], check=True)
    assert find_version_before(tmp_path / "found", root=repository) is None


def test_does_not_use_the_history_of_another_project(repository: Path, tmp_path: Path) -> None:
    inner = repository / "inner"
    (inner / "migrations" / "versions").mkdir(parents=True)
    (inner / "migrations" / "versions" / "0009_x.py").write_text("")
    assert find_version_before(tmp_path / "found", root=inner) is None
