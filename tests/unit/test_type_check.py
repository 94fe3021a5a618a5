"""The one call of the type checker, `mypy`, checks every Python file that is here."""

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from mypy.main import process_options
from mypy.options import Options

ROOT = Path(__file__).parents[2]
_TRITON = Path("tests/upstreams/models/triton")
# mypy wants one file a module; Triton wants every model in a file `model.py`: `blobs` is checked.
UNCHECKED = {_TRITON / name / "1" / "model.py" for name in ("echo", "twice", "words")}
# What may be set for some modules alone: both are about packages that have no types.
LOOSENED = {"disallow_subclassing_any", "ignore_missing_imports"}


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> tuple[set[Path], Options]:
    """The files that `mypy` would check, and how."""
    monkeypatch.chdir(ROOT)
    sources, options = process_options([])
    return {Path(source.path) for source in sources if source.path}, options


def list_python_files() -> Iterator[Path]:
    """All but those in folders that git ignores: environments, caches and what is built."""
    ignored = [".git/", *(ROOT / ".gitignore").read_text().split()]
    for folder, inner, files in os.walk(ROOT):
        inner[:] = [
            folder_name
            for folder_name in inner
            if not any(fnmatch(f"{folder_name}/", pattern) for pattern in ignored)
        ]
        yield from (Path(folder, name).relative_to(ROOT) for name in files if name.endswith(".py"))


def test_every_file_is_checked(configured: tuple[set[Path], Options]) -> None:
    assert set(list_python_files()) - configured[0] == UNCHECKED


def test_every_file_is_checked_strictly(configured: tuple[set[Path], Options]) -> None:
    """Without `ignore_errors` and the like."""
    _, options = configured
    assert options.disallow_untyped_defs
    assert not options.ignore_errors
    for module, changed in options.per_module_options.items():
        set_here = {name for name, value in changed.items() if value != []}
        assert set_here <= LOOSENED, module
