"""The audit passes only if everything was audited."""

import json
from typing import Any

from security.audit import FOUND, NOT_AUDITED, SERVICES, Ran, audit

CLEAN = {"name": "a", "version": "1", "vulns": []}
_FINDING = {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "fix_versions": ["3"]}
BAD = {"name": "b", "version": "2", "vulns": [_FINDING]}
SKIPPED = {"name": "c", "skip_reason": "not found"}


def make_answer(*dependencies: dict[str, Any]) -> Ran:
    return Ran(json.dumps({"dependencies": dependencies}), "")


AWAY = Ran("", "Traceback\nConnectionError: no such host")


def test_what_it_says() -> None:
    for answers, code, sentence in (
        ([make_answer(CLEAN)], 0, "Audit passed: 1 dependencies audited (pypi)"),
        ([make_answer(CLEAN, BAD)], FOUND, "b 2: PYSEC-2026-1, CVE-2026-1 (fixed in: 3)"),
        ([AWAY, make_answer(CLEAN)], 0, "1 dependencies audited (osv)"),
        ([make_answer(CLEAN, SKIPPED), make_answer(BAD)], FOUND, "AUDIT FAILED"),
        ([make_answer(CLEAN, SKIPPED), AWAY], NOT_AUDITED, "pypi: it does not know 1 of 2"),
        ([AWAY, AWAY], NOT_AUDITED, "osv: ConnectionError: no such host"),
        ([Ran("", ""), make_answer()], NOT_AUDITED, "AUDIT NOT DONE"),
    ):
        answers_by_service = dict(zip(SERVICES, answers, strict=False))
        exit_code, lines = audit(answers_by_service.__getitem__, frozenset())
        assert (exit_code, sentence in "\n".join(lines)) == (code, True), lines
