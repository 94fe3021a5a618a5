"""A version of the product as source: the one before this schema, out of git's history."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inference_store.index.schema import MIGRATIONS, newest

ROOT = MIGRATIONS.parent
_PREFIX = "INFERENCE_STORE_"


@dataclass(frozen=True)
class Version:
    """A source tree, and what to call it."""

    source: Path
    name: str

    def find_settings(self) -> set[str]:
        """The names of its settings: it refuses any other."""
        path = {**os.environ, "PYTHONPATH": str(self.source / "services")}
        print_names = (
            "import importlib.util, json, inference_store as own;"
            "rooms = importlib.util.find_spec('inference_store.platform');"
            "room = 'platform' if rooms else 'store';"
            "settings = importlib.import_module(f'inference_store.{room}.settings');"
            "print(json.dumps([own.__file__, *settings.names()]))"
        )
        printed = subprocess.run(
            [sys.executable, "-c", print_names],
            env=path,
            capture_output=True,
            check=True,
            text=True,
        )
        file, *names = json.loads(printed.stdout)
        assert Path(file).is_relative_to(self.source), f"{file} is not of {self.source}"
        return set(names)

    def environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Return the settings for its processes: those it knows, and the path of its source."""
        names = self.find_settings()
        known_settings = {
            name: value
            for name, value in settings.items()
            if not name.startswith(_PREFIX) or name in names
        }
        return {**known_settings, "PYTHONPATH": str(self.source / "services")}


def find_version_before(folder: Path, *, root: Path = ROOT) -> Version | None:
    """Find the newest version of the first-parent history with an older schema.

    Its source is put into `folder`. None if there is no such version, or no history at all. A
    higher number is of the time before the migrations were numbered again.
    """
    own = newest(root / "migrations")
    for commit in _run_git(root, "rev-list", "--first-parent", "HEAD").split():
        files = _run_git(root, "ls-tree", "--name-only", commit, "migrations/versions/").split()
        heads = [Path(name).name.split("_")[0] for name in files if name.endswith(".py")]
        if heads and max(heads) < own:
            _extract(root, commit, folder)
            return Version(folder, f"{commit[:12]} (schema {max(heads)})")
    return None


def _run_git(root: Path, *arguments: str) -> str:
    """Return what git prints; "" if there is no git, or no history of this project."""
    command = ["git", "-C", str(root), *arguments]
    try:
        top = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--show-toplevel"],
            capture_output=True,
            text=True,
            check=True,
        )
        if Path(top.stdout.strip()).resolve() != root.resolve():
            return ""
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


def _extract(root: Path, commit: str, folder: Path) -> None:
    archive = ["git", "-C", str(root), "archive", commit]
    packed = subprocess.run(archive, capture_output=True, check=True)
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed.stdout, check=True)
