"""The glossary is a sorted table, and its names are those of the code and of the API."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "reference" / "glossary.md").read_text()
# Routes, schemas and fields; and the types of errors, which the OpenAPI does not list.
API = (ROOT / "docs" / "reference" / "openapi.json").read_text()
ERRORS = (ROOT / "docs" / "reference" / "errors.md").read_text()


class Row(NamedTuple):
    """One row of the table of terms, as it is written."""

    term: str
    definition: str
    code: str
    api: str
    old: str


def read_terms() -> list[Row]:
    """Return the rows of the table of terms; a row of another width is a TypeError."""
    section = GLOSSARY.split("## Terms\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [Row(*(cell.strip() for cell in line.strip("|").split("|"))) for line in lines[2:]]


def find_names(cell: str) -> list[str]:
    """Return the names in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def test_every_row_is_complete() -> None:
    rows = read_terms()
    assert len(rows) > 100
    assert not [row.term for row in rows if not all(row) or not row.definition.endswith(".")]
    terms = [row.term.lower() for row in rows]
    assert terms == sorted(set(terms))
    names = [name for row in rows for name in find_names(row.code)]
    assert sorted(names) == sorted(set(names)), "a name has one meaning"


def test_names_of_the_code_are_in_it() -> None:
    sources = [ROOT / "services", ROOT / "client" / "src", ROOT / "tests" / "unit"]
    paths = [path for source in sources for path in source.rglob("*")]
    texts = [path.read_text() for path in paths if path.suffix == ".py"]
    words = {path.stem for path in paths} | set(re.findall(r"\w+", "\n".join(texts)))
    rows = [row for row in read_terms() if row.old == "—"]
    assert not {name for row in rows for name in find_names(row.code)} - words


def test_names_of_the_api_are_in_the_openapi() -> None:
    for name in (name for row in read_terms() for name in find_names(row.api)):
        written = name if name.startswith("/") else f'"{name}"'
        assert written in API or f"## {name}\n" in ERRORS or f"/{name}" in API, name
