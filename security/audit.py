"""`make audit`: every locked dependency against the known vulnerabilities.

Ends with 0 where nothing is found that SECURITY.md does not explain, 1 where something is, and 3
where no vulnerability service could be asked: then nothing was audited, and it says so.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Every dependency of the product, the demo and development, with its exact version.
LOCK = ROOT / "requirements-dev.lock"
SERVICES = ("pypi", "osv")
FOUND, NOT_AUDITED = 1, 3
_ID = re.compile(r"^\| *`([A-Za-z]+-[\w-]+)` *\|", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ran:
    """What pip-audit printed: its findings (JSON), and its complaints."""

    printed: str
    complaints: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A vulnerability of one dependency, by all its names."""

    package: str
    names: tuple[str, ...]
    fixed_in: str


def ask(service: str) -> Ran:
    """Run pip-audit over the lock with one vulnerability service."""
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip"]
    command += ["--progress-spinner=off", "--aliases=on", "--format=json"]
    command += ["--vulnerability-service", service, "--requirement", str(LOCK)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Ran(done.stdout, done.stderr)


def audit(ask: Callable[[str], Ran], explained: frozenset[str]) -> tuple[int, list[str]]:
    """The exit code, and what to say. Asks one service after the other, until one knows all."""
    said: list[str] = []
    for service in SERVICES:
        ran = ask(service)
        dependencies = _dependencies(ran.printed)
        unknown = [one["name"] for one in dependencies if "skip_reason" in one]
        if dependencies and not unknown:
            return _judged(service, dependencies, explained)
        reason = f"it does not know {len(unknown)} of {len(dependencies)} dependencies"
        if not dependencies:
            reason = (ran.complaints.strip().splitlines() or ["it gave no answer"])[-1][:300]
        said.append(f"  {service}: {reason}")
    head = "AUDIT NOT DONE: no vulnerability service could be asked, so nothing is known."
    return NOT_AUDITED, [head, *said, "Run `make audit` where one of them can be reached."]


def _dependencies(printed: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(printed)
    except json.JSONDecodeError:
        return []
    return list(found["dependencies"])


def _judged(
    service: str, dependencies: Sequence[dict[str, Any]], explained: frozenset[str]
) -> tuple[int, list[str]]:
    findings = list(_findings(dependencies))
    new = [one for one in findings if not explained.intersection(one.names)]
    said = [
        f"  {one.package}: {', '.join(one.names)} (fixed in: {one.fixed_in or 'no version yet'})"
        for one in new
    ]
    count = f"{len(dependencies)} dependencies audited ({service})"
    known = f"{len(findings) - len(new)} findings explained in SECURITY.md"
    if new:
        remedy = "Take the version that mends it (`make lock`), or explain it in SECURITY.md."
        return FOUND, [f"AUDIT FAILED: {count}; {len(new)} findings, {known}:", *said, remedy]
    return 0, [f"Audit passed: {count}; nothing new, {known}."]


def _findings(dependencies: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    for one in dependencies:
        for vulnerability in one["vulns"]:
            names = (vulnerability["id"], *vulnerability.get("aliases", ()))
            fixed = ", ".join(vulnerability["fix_versions"])
            yield Finding(f"{one['name']} {one['version']}", names, fixed)


def explained_in(page: str) -> frozenset[str]:
    """The findings that the page's table explains."""
    return frozenset(_ID.findall(page))


def main() -> int:
    """Audit, and say what came of it."""
    code, said = audit(ask, explained_in((ROOT / "SECURITY.md").read_text()))
    print("\n".join(said))
    return code


if __name__ == "__main__":
    sys.exit(main())
