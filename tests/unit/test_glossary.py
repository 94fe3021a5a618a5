"""The glossary is a sorted table, and its names are those of the code and of the API."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text()
SOURCES = [ROOT / "services", ROOT / "client" / "src", ROOT / "tests" / "unit"]
# Routes, schemas and fields; and the types of errors, which the OpenAPI does not list.
API = (ROOT / "tests" / "unit" / "golden" / "files" / "openapi.json").read_text()
ERRORS = (ROOT / "docs" / "reference" / "errors.md").read_text()
NONE = "—"


class Row(NamedTuple):
    """One row of the table of terms, as it is written."""

    term: str
    definition: str
    code: str
    api: str
    old: str


def read_table(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading, without its first two lines."""
    section = GLOSSARY.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def read_terms() -> list[Row]:
    """Return the rows of the table of terms; a row of another width is a TypeError."""
    return [Row(*cells) for cells in read_table("Terms")]


def find_names(cell: str) -> list[str]:
    """Return the names in backticks."""
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def words() -> set[str]:
    """Every word of the code, and the name of every module and folder."""
    paths = [
        path for source in SOURCES for path in source.rglob("*") if "__pycache__" not in str(path)
    ]
    texts = [path.read_text() for path in paths if path.suffix == ".py"]
    return {path.stem for path in paths} | set(re.findall(r"\w+", "\n".join(texts)))


def test_every_row_is_complete() -> None:
    rows = read_terms()
    assert len(rows) > 100
    assert not [row.term for row in rows if not all(row)]
    assert not [row.term for row in rows if not row.definition.endswith(".")]
    assert not [row.term for row in rows if not find_names(row.code)]


def test_terms_are_sorted_and_none_is_there_twice() -> None:
    terms = [row.term.lower() for row in read_terms()]
    assert terms == sorted(set(terms))


def test_a_name_of_the_code_has_one_meaning() -> None:
    names = [name for row in read_terms() for name in find_names(row.code)]
    assert sorted(names) == sorted(set(names))


def test_no_old_name_is_the_new_one() -> None:
    for row in read_terms():
        assert not set(find_names(row.code)) & set(find_names(row.old)), row.term


def test_names_that_need_no_renaming_are_in_the_code(words: set[str]) -> None:
    rows = [row for row in read_terms() if row.old == NONE]
    missing = [
        f"{row.term}: {name}" for row in rows for name in find_names(row.code) if name not in words
    ]
    assert not missing, "\n".join(missing)


def test_names_of_the_api_are_in_the_openapi() -> None:
    missing = []
    for row in read_terms():
        for name in find_names(row.api):
            written = name if name.startswith("/") else f'"{name}"'
            if written not in API and f"## {name}\n" not in ERRORS and f"/{name}" not in API:
                missing.append(f"{row.term}: {name}")
    assert not missing, "\n".join(missing)


def test_words_to_avoid_are_sorted_pairs() -> None:
    rows = read_table("Words to avoid")
    assert all(len(cells) == 2 and all(cells) for cells in rows)
    avoided = [cells[0].lower() for cells in rows]
    assert avoided == sorted(set(avoided))
