"""pytest: `--ring landing` or `--ring nightly` selects the tests of a ring; without it all run.

| ring | what runs |
|---|---|
| test | units, and parts on real servers, without the dearest files: `make test` |
| landing | all parts, the chains of kills, smoke tests of each group, and a tenth of its files |
| nightly | each group whole, and each kill by itself: `make nightly` |

The commit chooses the tenth, so each file has its turn. What a change touches adds whole groups and
never takes any away. `python -m tests.runs.rings` prints what a landing runs of each group.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest

from tests.servers.environment import TEST_CITUS

ROOT = Path(__file__).parents[2]
ROTATION = 10
RINGS = ("test", "landing", "nightly")
_SERVICES = "services/inference_store"
_HOURS = 3
"""A change is made of the commits of this many hours, unless CI_BASE names the commit before it."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Tests that guard an environment: whole in `make nightly`, in part at a landing."""

    paths: tuple[str, ...] = ()
    """Of its tests, from the root; the longest path decides the group of a file."""
    smoke: tuple[str, ...] = ()
    """The tests, or files, that every landing runs."""
    whole_after: tuple[str, ...] = ()
    """A change below one of these paths adds the whole group to a landing."""
    has_one_turn: bool = False
    """Whether its files have their turn together, because what they need costs more than they."""


GROUPS = {
    "long": Group(),  # marked so in tests/integration
    # And what has a server of its own to stop.
    "faults": Group(
        paths=("tests/e2e/faults",),
        smoke=(
            "tests/e2e/faults/test_each_once.py"
            "::test_each_server_is_stopped_and_each_service_killed_once",
        ),
    ),
    # Before a release: `make faults-steps`.
    "release": Group(paths=("tests/e2e/faults/deletion/test_steps.py",)),
    "e2e": Group(
        paths=("tests/e2e",),
        smoke=(
            "tests/e2e/test_secured_line.py::test_an_event_becomes_a_typed_answer",
            "tests/e2e/test_demo.py::test_the_demo_feeds_once_answers_and_leaves_no_process",
        ),
    ),
    "model-servers": Group(
        paths=("tests/e2e/model_servers", "tests/e2e/capture"),
        smoke=(
            "tests/e2e/capture/test_line.py::test_calls_become_answers_and_the_books_close",
            "tests/e2e/model_servers/test_rest.py::test_mlserver",
            "tests/e2e/model_servers/test_grpc.py::test_mlserver",
        ),
        whole_after=(f"{_SERVICES}/proxy/",),
    ),
    "readers": Group(paths=("tests/e2e/readers",), whole_after=(f"{_SERVICES}/export/",)),
    "console": Group(
        paths=("tests/console",),
        smoke=(
            "tests/console/test_access.py::test_a_key_is_made_shown_once_and_revoked",
            "tests/console/test_access.py::test_a_key_is_sent_once_and_a_cookie_stays",
            "tests/console/test_erasures.py::test_a_policy_is_previewed_saved_and_run",
            "tests/console/test_erasures.py::test_places_inspects_and_releases_a_hold",
            "tests/console/test_exports.py::test_exports_what_matches_and_downloads_it",
            "tests/console/test_inference.py::test_list_and_picture_point_at_each_other",
            "tests/console/workflows/test_erasure.py"
            "::test_an_erasure_is_proved_and_one_byte_breaks_it",
            "tests/console/workflows/test_erasure.py"
            "::test_a_poison_event_is_redriven_after_a_repair",
        ),
        whole_after=("console/",),
    ),
    "chart": Group(
        paths=("tests/chart",),
        smoke=(
            "tests/chart/test_network_policies.py::test_only_listed_connections_are_allowed",
            "tests/chart/test_objects.py::test_kubernetes_knows_every_field",
            "tests/chart/test_objects.py::test_every_pod_passes_the_restricted_standard",
            "tests/chart/test_objects.py::test_every_referenced_secret_exists",
            "tests/chart/test_values.py::test_every_value_arrives_where_it_should",
        ),
        whole_after=("helm/",),
    ),
    "chart-e2e": Group(
        paths=("tests/chart/e2e",), whole_after=("helm/", "Dockerfile"), has_one_turn=True
    ),
    "package": Group(
        paths=("tests/unit/test_wheel.py",),
        whole_after=("pyproject.toml", "setup.py", "migrations/"),
    ),
    "citus": Group(  # the files are those of tests.runs.citus
        smoke=(
            "tests/integration/ingester/test_pipeline.py::test_events_become_typed_rows_once",
            "tests/integration/query/test_pages.py::test_pages_and_counts",
            "tests/integration/retention/test_erasures.py"
            "::test_a_request_marks_at_once_and_is_worked_off",
            "tests/integration/api/test_across.py::test_pages_of_models_are_sorted",
            "tests/integration/api/test_aggregates.py::test_examples_and_refusals",
            "tests/integration/api/test_metadata_edits.py::test_changes_and_adds_items",
            "tests/integration/api/test_streams.py::test_streams_in_order_and_after_any_line",
            "tests/integration/citus/test_one_shard.py"
            "::test_every_route_of_a_model_reads_one_shard",
        ),
        whole_after=("migrations/", f"{_SERVICES}/index/"),
    ),
    "workflows": Group(whole_after=(".github/",)),  # no tests
    "bench-once": Group(whole_after=(f"{_SERVICES}/query/", "benchmarks/")),  # no tests
}
_PARTS = "tests/integration"
# Parts that take half of the time of all: every landing runs them.
DEAREST = (
    f"{_PARTS}/api/access/test_every_route.py",
    f"{_PARTS}/api/test_erased_asides.py",
    f"{_PARTS}/api/test_erased_names.py",
    f"{_PARTS}/api/test_erased_unattributed.py",
    f"{_PARTS}/api/test_erased_values.py",
    f"{_PARTS}/api/test_export_blobs.py",
    f"{_PARTS}/api/test_exports.py",
    f"{_PARTS}/api/test_exports_erased.py",
    f"{_PARTS}/api/test_neighbours.py",
    f"{_PARTS}/cli",
    f"{_PARTS}/client",
    f"{_PARTS}/ingester/test_dead_letter_limit.py",
    f"{_PARTS}/ingester/test_odd_traffic.py",
    f"{_PARTS}/ingester/test_recreated_topic.py",
    f"{_PARTS}/objects/test_versions.py",
    f"{_PARTS}/operations",
    f"{_PARTS}/platform",
    f"{_PARTS}/proxy/capture",
    f"{_PARTS}/query/counting",
    f"{_PARTS}/query/test_pages.py",
    f"{_PARTS}/retention/test_certificates.py",
    f"{_PARTS}/retention/test_holds.py",
    f"{_PARTS}/retention/test_locked_objects.py",
)
LANDINGS = {"", "kills", "dearest"}
"""What every landing runs whole; `kills` are chains there, and single ones in `make nightly`."""
_MARKED = re.compile(r"own_(postgres|kafka|minio)|mark\.(faults|kills|long)|faults\(|kill_chain")


def find_group(path: str, marks: Sequence[str] = ()) -> str:
    """Return the group of a test by its path from the root and its marks; "" in `make test`.

    `kills` and `dearest` are groups that every landing runs.
    """
    if os.environ.get(TEST_CITUS):
        return "citus"
    folders = {folder: name for name, group in GROUPS.items() for folder in group.paths}
    folders |= dict.fromkeys(DEAREST, "dearest")
    below = [folder for folder in folders if Path(path).is_relative_to(folder)]
    group = folders[max(below, key=len)] if below else ""
    marked = [mark for mark in ("faults", "kills", "long") if mark in marks]
    return marked[0] if marked and group != "release" else group


@dataclass(frozen=True)
class Landing:
    """What a landing runs beyond `make test`."""

    parent: str
    """The hash of the commit's first parent, which chooses the tenth; "" where there is no git."""
    changed: tuple[str, ...]
    """The files of the change."""
    everything: bool = False

    def is_whole(self, group: str) -> bool:
        """Return whether the change adds the whole group, unless CI_IN_PART says it is late."""
        if os.environ.get("CI_IN_PART") == "1":
            return False
        folders = GROUPS[group].whole_after
        return self.everything or any(path.startswith(folders) for path in self.changed)

    def has_turn(self, group: str, path: str) -> bool:
        """Return whether a file is in this commit's tenth."""
        name = group if GROUPS[group].has_one_turn else path
        return crc32(name.encode()) % ROTATION == crc32(self.parent.encode()) % ROTATION

    def runs(self, group: str, path: str, test: str = "") -> bool:
        """Return whether a test runs, or without `test` whether anything of its file does."""
        if group == "release":
            return False
        if group in LANDINGS or self.is_whole(group) or self.has_turn(group, path):
            return True
        smoke = GROUPS[group].smoke
        if not test:
            return any(node.partition("::")[0] == path for node in smoke)
        return any(test == node or test.startswith((f"{node}::", f"{node}[")) for node in smoke)


@cache
def find_landing() -> Landing:
    """Read the commit from git, and the variables CI_BASE and CI_ALL."""
    parent = _ask_git("rev-parse", "HEAD^") or _ask_git("rev-parse", "HEAD")
    base = os.environ.get("CI_BASE") or _find_base()
    changed = _ask_git("diff", "--name-only", base, "HEAD").splitlines() if base else []
    return Landing(parent, tuple(changed), everything=os.environ.get("CI_ALL") == "1")


def _find_base() -> str:
    committed = _ask_git("log", "-1", "--format=%ct")
    before = f"--before={int(committed or 0) - _HOURS * 3600}"
    return _ask_git("rev-list", "-1", before, "HEAD") if committed else ""


def _ask_git(*arguments: str) -> str:
    """Return git's answer, or "" if there is none: a tree without its history is tested too."""
    try:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _runs(ring: str, group: str, path: str, test: str = "") -> bool:
    if ring == "landing":
        return find_landing().runs(group, path, test)
    return group == "" if ring == "test" else group not in {"", "dearest", "release"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ring", choices=RINGS, help="select the tests of a ring")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of which nothing runs."""
    ring = config.getoption("--ring")
    if not ring or collection_path.suffix != ".py":
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    group = find_group(path)
    if ring == "nightly" and group in {"", "dearest"}:
        return None if _MARKED.search(collection_path.read_text()) else True
    return None if _runs(ring, group, path) else True


# After tests.servers.plugin, which marks the faults.
@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ring = config.getoption("--ring")
    if not ring:
        return
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix()
        group = find_group(path, [mark.name for mark in item.iter_markers()])
        test = item.nodeid.partition("@")[0]
        (kept if _runs(ring, group, path, test) else left_out).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def list_files(group: str) -> list[str]:
    files = (path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    return sorted(path for path in files if find_group(path) == group)


def describe(landing: Landing) -> list[str]:
    """Return a line for each group: what a landing runs of it, and why."""
    lines = [f"a landing after {landing.parent[:12] or 'no commit'}, {len(landing.changed)} files"]
    for name, group in GROUPS.items():
        turn = [path for path in list_files(name) if landing.has_turn(name, path)]
        if landing.is_whole(name):
            lines.append(f"  {name}: whole")
        else:
            lines.append(f"  {name}: {len(group.smoke)} smoke tests {' '.join(turn)}".rstrip())
    return lines


def main(arguments: Sequence[str]) -> int:
    """Print what a landing runs; with the name of a group return 0 if it runs more than smoke."""
    landing = find_landing()
    if not arguments:
        print("\n".join(describe(landing)))
        return 0
    [group] = arguments
    has_turn = any(landing.has_turn(group, path) for path in list_files(group))
    return 0 if landing.is_whole(group) or has_turn else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
