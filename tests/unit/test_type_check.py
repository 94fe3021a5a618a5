"""The one call of the type checker, `mypy`, checks every Python file that is here, strictly."""

import os
from fnmatch import fnmatch
from pathlib import Path

import pytest
from mypy.main import process_options

ROOT = Path(__file__).parents[2]
_TRITON = Path("tests/upstreams/models/triton")
# mypy wants one file a module; Triton wants every model in a file `model.py`: `blobs` is checked.
UNCHECKED = {_TRITON / name / "1" / "model.py" for name in ("echo", "twice", "words")}
# What may be set for some modules alone: both are about packages that have no types.
LOOSENED = {"disallow_subclassing_any", "ignore_missing_imports"}


def test_every_file_is_checked_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    sources, options = process_options([])
    # git ignores environments, caches and what is built
    ignored = [".git/", *Path(".gitignore").read_text().split()]
    files: set[Path] = set()
    for folder, inner, names in os.walk("."):
        inner[:] = [it for it in inner if not any(fnmatch(f"{it}/", git) for git in ignored)]
        files |= {Path(folder, name) for name in names if name.endswith(".py")}
    assert files - {Path(source.path) for source in sources if source.path} == UNCHECKED
    assert options.disallow_untyped_defs
    assert not options.ignore_errors
    for module, changed in options.per_module_options.items():
        assert {name for name, value in changed.items() if value != []} <= LOOSENED, module
