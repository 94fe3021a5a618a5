"""The glossary is a sorted table, and its names are those of the API."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
GLOSSARY = (REFERENCE / "glossary.md").read_text()
# Routes, schemas and fields; and the types of errors, which the OpenAPI does not list.
API = (REFERENCE / "openapi.json").read_text()
ERRORS = (REFERENCE / "errors.md").read_text()


def test_terms_are_sorted_and_name_what_the_api_has() -> None:
    lines = [line for line in GLOSSARY.splitlines() if line.startswith("|")][2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) > 40
    terms = [term.lower() for term, _, _ in rows]
    assert terms == sorted(set(terms))
    assert not [term for term, meaning, _ in rows if not meaning.endswith(".")]
    for name in (name for *_, names in rows for name in re.findall(r"`([^`]+)`", names)):
        written = name if name.startswith("/") else f'"{name}"'
        assert written in API or f"## {name}\n" in ERRORS or f"/{name}" in API, name
