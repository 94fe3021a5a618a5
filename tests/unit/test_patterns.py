"""No pattern has a possessive quantifier or an atomic group.

Python before 3.11.5 backtracks wrongly within them (CPython gh-106052): what should match does not,
in silence, and Debian 12 has Python 3.11.2.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("services", "client", "tests", "benchmarks", "security")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
GRAMMARS = sorted((ROOT / "services").rglob("*.lark"))
# `++` is one behind what can be repeated: a class, a group, a dot or an escape, as in `\w++`.
POSSESSIVE = re.compile(r"(?<!\\)(?:[*?}]|[\]).]\+|\\\w\+)\+|\(\?>")


def list_constants(path: Path) -> Iterator[str]:
    """Yield each text of a module, also those of f-strings."""
    for node in ast.walk(ast.parse(path.read_text(), path.name)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
            yield node.value if isinstance(node.value, str) else node.value.decode("latin-1")


@pytest.mark.parametrize(
    "pattern", [r"[^a]*+", "(?:a|b)++", r"\w++", ".++", "a?+", "a{1,3}+", "(?>a)", r'"(?:a++|b)*+"']
)
def test_they_are_recognized(pattern: str) -> None:
    assert POSSESSIVE.search(pattern)


@pytest.mark.parametrize("pattern", [r"[^a]*", "(?:a|b)+", r"\++", r"\*+", "g++", "(?=a)", r"a\?+"])
def test_accepts_other_patterns(pattern: str) -> None:
    assert not POSSESSIVE.search(pattern)


def test_no_pattern_has_one() -> None:
    texts = [
        (path, text) for path in FILES if path != Path(__file__) for text in list_constants(path)
    ]
    texts += [(path, path.read_text()) for path in GRAMMARS]
    possessive = [
        f"{path.relative_to(ROOT)}: {text}" for path, text in texts if POSSESSIVE.search(text)
    ]
    assert not possessive, "\n".join(possessive)
