"""`python -m tests.mutations [WORD...]` breaks each promise of promises.toml, and runs its test.

An edit is made in a copy of the services, against which its test runs: it must fail, and all tests
must pass without an edit. WORD selects the promises that contain it. The code is 1 if a test saw
nothing.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tests.runs.plugin import FAILURES
from tests.runs.rings import GROUPS, LANDINGS, find_group
from tests.servers.running import STARTS
from tests.servers.sharing import SharedServers
from tests.warm.process import COLD

ROOT = Path(__file__).parents[2]
_PROMISES = Path(__file__).with_name("promises.toml")
_SECONDS_A_TEST = 300


def main(words: Sequence[str]) -> int:
    chosen = [p for p in read_promises() if not words or any(word in str(p) for word in words)]
    # A warm process would have imported the product.
    with SharedServers({name: start for name, start in STARTS.items() if name != "warm"}):
        missed = [promise for promise in chosen if not is_seen(promise)]
        tests = sorted({promise["test"] for promise in chosen})
        broken = run_tests(ROOT / "services", *tests)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} seen")
    if broken:
        print(f"without an edit, too, there failed: {broken}")
    return 1 if missed or broken else 0


def read_promises() -> list[dict[str, str]]:
    """Return the table's rows: promise, file, old, new, test."""
    rows: list[dict[str, str]] = tomllib.loads(_PROMISES.read_text())["promise"]
    return rows


def break_promise(promise: dict[str, str], services: Path) -> None:
    """Edit the file in a tree of services. Raises ValueError if its text is not there once."""
    path = services / "inference_store" / promise["file"]
    text = path.read_text()
    if text.count(promise["old"]) != 1:
        raise ValueError(f"{promise['file']} has this not once:\n{promise['old']}")
    path.write_text(text.replace(promise["old"], promise["new"]))


def is_seen(promise: dict[str, str]) -> bool:
    with tempfile.TemporaryDirectory(prefix="inference-store-mutant-") as folder:
        services = Path(folder, "services")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "services", services, ignore=ignored)
        Path(folder, "migrations").symlink_to(ROOT / "migrations")
        break_promise(promise, services)
        failed = run_tests(services, promise["test"])
    seen = f"seen by {find_ring(promise['test'])}" if failed else "NOT SEEN"
    print(f"{seen}: {promise['file']}: {promise['promise']} ({promise['test']})", flush=True)
    return bool(failed)


def find_ring(test: str) -> str:
    """Return the narrowest command that runs a test."""
    path = test.partition("::")[0]
    group = find_group(path, re.findall(r"mark\.(faults|kills|long)", (ROOT / path).read_text()))
    if not group:
        return "make test"
    is_landing = group in LANDINGS or test in GROUPS[group].smoke
    return ".ci/run" if is_landing else "make nightly"


def run_tests(services: Path, *tests: str) -> str:
    """Run tests with the product of this tree. Return the first that failed; "" if none did.

    An edit may make a loop wait in a way that no limit within the process ends.
    """
    with tempfile.NamedTemporaryFile(prefix="inference-store-failed-") as noted:
        changes = {COLD: "1", FAILURES: noted.name, "PYTHONPATH": str(services)}
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--faults", "-p", "no:cacheprovider"]
        try:
            subprocess.run(
                [*command, *tests],
                cwd=ROOT,
                env=os.environ | changes | {"PYTHONDONTWRITEBYTECODE": "1"},
                stdout=subprocess.DEVNULL,
                check=False,
                timeout=_SECONDS_A_TEST * len(tests),
            )
        except subprocess.TimeoutExpired:
            return tests[0]
        return Path(noted.name).read_text().partition("\n")[0]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
