"""`make faults` names every file with tests of faults, so that the others need no import."""

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
# What the tests' plugin takes for a fault.
_FAULT = re.compile(r"\bown_(postgres|kafka|minio)\b|\bmark\.faults\b|\bimport .*\bfaults\b")


def list_files_with_faults() -> Iterator[Path]:
    """Yield the files outside the folders of faults, of servers and of units."""
    for path in TESTS.rglob("*.py"):
        room = path.relative_to(TESTS).parts
        if not {"faults", "servers", "unit"} & set(room) and _FAULT.search(path.read_text()):
            yield path


def test_make_faults_names_every_file_with_faults() -> None:
    makefile = (TESTS.parent / "Makefile").read_text()
    named = re.search(r"^FAULTS := (.+)$", makefile, re.MULTILINE)
    assert named is not None
    files = list(list_files_with_faults())
    assert files
    for path in files:
        assert path.relative_to(TESTS).parts[0] in {"e2e", "integration"}, path
        assert path.name.startswith("test_"), f"a fixture on a server of its own: {path}"
        assert re.search(named[1], path.read_text()), path
