"""The audit passes only where everything was audited."""

import json
from typing import Any

import pytest
from security.audit import FOUND, NOT_AUDITED, ROOT, SERVICES, Ran, audit, explained_in

CLEAN = {"name": "a", "version": "1", "vulns": []}
BAD = {
    "name": "b",
    "version": "2",
    "vulns": [{"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "fix_versions": ["3"]}],
}
SKIPPED = {"name": "c", "skip_reason": "not found"}


def answer(*dependencies: dict[str, Any]) -> Ran:
    return Ran(json.dumps({"dependencies": dependencies}), "")


AWAY = Ran("", "Traceback\nConnectionError: no such host")


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ([answer(CLEAN)], 0, "Audit passed: 1 dependencies audited (pypi)"),
        ([answer(CLEAN, BAD)], FOUND, "b 2: PYSEC-2026-1, CVE-2026-1 (fixed in: 3)"),
        ([AWAY, answer(CLEAN)], 0, "1 dependencies audited (osv)"),
        ([answer(CLEAN, SKIPPED), answer(BAD)], FOUND, "AUDIT FAILED"),
        ([answer(CLEAN, SKIPPED), AWAY], NOT_AUDITED, "pypi: it does not know 1 of 2"),
        ([AWAY, AWAY], NOT_AUDITED, "osv: ConnectionError: no such host"),
        ([Ran("", ""), answer()], NOT_AUDITED, "AUDIT NOT DONE"),
    ],
)
def test_what_it_says(answers: list[Ran], code: int, said: str) -> None:
    given = dict(zip(SERVICES, answers, strict=False))
    found, lines = audit(lambda service: given[service], frozenset())
    assert (found, said in "\n".join(lines)) == (code, True), lines


@pytest.mark.parametrize("name", ["PYSEC-2026-1", "CVE-2026-1"])
def test_what_is_explained_passes(name: str) -> None:
    page = f"# Security\n\n| finding | in | why |\n|---|---|---|\n| `{name}` | b | never called |\n"
    code, lines = audit(lambda _: answer(BAD), explained_in(page))
    assert (code, "1 findings explained" in lines[0]) == (0, True)


def test_the_page_has_the_table() -> None:
    assert "| finding | in |" in (ROOT / "SECURITY.md").read_text()
