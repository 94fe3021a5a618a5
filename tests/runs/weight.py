"""`make weight`: what each room weighs beside its budget, and the files of the four walks.

A room is a folder of the services, or another part of the repository. It fails if a room has more
lines or files than BUDGETS allows, or a walk of docs/explanation/architecture.md more files than
WALKS. Whoever adds says what goes; a budget is lowered when a room has become lighter.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

SERVICES: Final = Path("services/inference_store")
WALKS_PAGE: Final = Path("docs/explanation/architecture.md")
LONGEST_FILE: Final = 600

# Files and lines that each room may have. The last ones are Python outside the services, the docs'
# Markdown, and the console's TypeScript.
BUDGETS: Final = {
    "access": (6, 1_090),
    "api": (44, 12_570),
    "cli": (9, 1_820),
    "erasure": (30, 10_340),
    "export": (8, 2_660),
    "grpc_messages": (1, 50),
    "index": (29, 6_950),
    "inference": (23, 4_860),
    "ingester": (13, 3_840),
    "local": (17, 2_850),
    "objects": (10, 2_430),
    "operations": (11, 2_620),
    "platform": (17, 3_490),
    "proxy": (39, 10_500),
    "query": (66, 15_180),
    "retention": (13, 3_500),
    "replay": (5, 900),
    "truth": (9, 1_680),
    "tests": (577, 83_990),
    "client": (63, 9_890),
    "benchmarks": (41, 6_470),
    "docs": (53, 9_000),
    "console": (174, 17_810),
}
# Files that a newcomer reads, in order, to follow one of each through the services.
WALKS: Final = {"a query": 15, "an erasure": 13, "a captured call": 10, "an event": 8}
_OUTSIDE: Final = {
    "tests": "tests/**/*.py",
    "client": "client/src/**/*.py",
    "benchmarks": "benchmarks/**/*.py",
    "docs": "docs/**/*.md",
    "console": "console/src/**/*.*",
}


class Weight(NamedTuple):
    """What some files weigh; `statements` and `imports` (lines) are 0 for other languages."""

    files: int
    lines: int
    statements: int
    imports: int
    longest: int


def main() -> None:
    """Print the table, and fail for each budget that is passed."""
    weights = {room: _weigh(_list_files(room)) for room in BUDGETS}
    unknown = {path.name for path in SERVICES.iterdir() if any(path.glob("*.py"))} - {*BUDGETS}
    faults = [f"{room}: it has no budget in {__file__}" for room in sorted(unknown)]
    print(f"{'room':15}{'files':>6}{'of':>6}{'lines':>9}{'of':>9}{'statements':>12}{'imports':>9}")
    for room, weight in weights.items():
        files, lines = BUDGETS[room]
        print(
            f"{room:15}{weight.files:>6}{files:>6}{weight.lines:>9,}{lines:>9,}"
            f"{weight.statements:>12,}{weight.imports:>9,}"
        )
        if weight.files > files or weight.lines > lines:
            faults.append(f"{room}: {weight.files} files and {weight.lines:,} lines are too many")
        if room not in _OUTSIDE and weight.longest > LONGEST_FILE:
            faults.append(f"{room}: a file has more than {LONGEST_FILE} lines")
    services = [weight for room, weight in weights.items() if room not in _OUTSIDE]
    files, lines, statements = (sum(column) for column in list(zip(*services, strict=True))[:3])
    print(f"services: {files} files, {lines:,} lines, {statements:,} statements")
    faults += _check_walks()
    if faults:
        sys.exit("\n".join(faults))


def _list_files(room: str) -> list[Path]:
    if room in _OUTSIDE:
        found = Path().glob(_OUTSIDE[room])
        return [path for path in found if "node_modules" not in path.parts]
    return [*(SERVICES / room).rglob("*.py")]


def _weigh(files: list[Path]) -> Weight:
    texts = [path.read_text() for path in files]
    counts = [text.count("\n") for text in texts]
    nodes = [
        node
        for path, text in zip(files, texts, strict=True)
        if path.suffix == ".py"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt)
    ]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    import_lines = sum((node.end_lineno or 0) - node.lineno + 1 for node in imports)
    return Weight(len(files), sum(counts), len(nodes), import_lines, max(counts, default=0))


def _check_walks() -> Iterator[str]:
    """Yield what is wrong with the walks: a list of files after a line `**A query**: ...`."""
    text = WALKS_PAGE.read_text()
    for walk, most in WALKS.items():
        found = re.search(
            rf"\*\*{walk}\*\*.*?\n\n((?:\d+\. .*\n(?:   .*\n)*)+)", text, re.IGNORECASE
        )
        files = re.findall(r"^\d+\. `([^`]+)`", found[1], re.MULTILINE) if found else []
        print(f"{walk}: {len(files)} files of {most}")
        if not 0 < len(files) <= most:
            yield f"{WALKS_PAGE}: {walk} has {len(files)} files, and may have 1 to {most}"
        for file in files:
            if not (SERVICES / file).is_file():
                yield f"{WALKS_PAGE}: {walk} names {file}, which does not exist"


if __name__ == "__main__":
    main()
