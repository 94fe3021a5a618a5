"""The mutants go with the product: each edit finds its place, and each test is there."""

import ast
import re
from pathlib import Path

import pytest

from tests.mutations import MUTANTS, Mutant
from tests.mutations.mutant import PACKAGE, ROOT, NotOnce

DOCS = ROOT / "docs" / "how-to" / "tests.md"
_LIES_IN = {
    "unit": ("tests/unit/",),
    "integration": ("tests/integration/", "tests/e2e/faults/"),
    "faults": ("tests/e2e/", "tests/integration/"),
}


def _list_paths(mutant: Mutant) -> list[Path]:
    return [Path(target) for target in mutant.tests if target.startswith("tests/")]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_has_its_place_and_its_tests(mutant: Mutant) -> None:
    edited = mutant.edit((ROOT / PACKAGE / mutant.file).read_text())
    ast.parse(edited)
    for path in _list_paths(mutant):
        assert path.as_posix().startswith(_LIES_IN[mutant.command])
        assert (ROOT / path).exists()
    assert _list_paths(mutant), "without a path all tests would run"


def test_names_are_there_once() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def test_the_table_of_the_docs_names_mutants_and_tests_that_exist() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if re.match(r"\| `[a-z0-9-]+` \|", line)]
    mutants_by_name = {mutant.name: mutant for mutant in MUTANTS}
    assert len(rows) >= 12
    for row in rows:
        name, promise, test, command = (cell.strip() for cell in row.strip("|").split(" | "))
        mutant = mutants_by_name[name.strip("`")]
        assert (promise, command) == (mutant.promise, f"`make {mutant.command}`")
        assert (ROOT / test.strip("`").partition("::")[0]).exists(), test


def test_a_text_that_is_not_there_once_is_refused(tmp_path: Path) -> None:
    [mutant] = [candidate for candidate in MUTANTS if candidate.name == "months-of-30-days"]
    path = tmp_path / PACKAGE / mutant.file
    path.parent.mkdir(parents=True)
    path.write_text(2 * mutant.old)
    with pytest.raises(NotOnce, match="2 times"):
        mutant.apply(tmp_path)
    assert path.read_text() == 2 * mutant.old
