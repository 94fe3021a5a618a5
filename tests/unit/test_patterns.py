"""No pattern has a possessive quantifier or an atomic group.

Python before 3.11.5 backtracks wrongly within them (CPython gh-106052): what should match does not,
in silence, and Debian 12 has Python 3.11.2.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# `++` is one behind what can be repeated: a class, a group, a dot or an escape, as in `\w++`.
POSSESSIVE = re.compile(r"(?<!\\)(?:[*?}]|[\]).]\+|\\\w\+)\+|\(\?>")


def test_no_pattern_has_one() -> None:
    for pattern in (r"[^a]*+", "(?:a|b)++", r"\w++", ".++", "a?+", "a{1,3}+", "(?>a)"):
        assert POSSESSIVE.search(pattern), pattern
    for pattern in (r"[^a]*", "(?:a|b)+", r"\++", r"\*+", "g++", "(?=a)", r"a\?+"):
        assert not POSSESSIVE.search(pattern), pattern
    texts = [path.read_text() for path in (ROOT / "services").rglob("*.lark")]
    for folder in ("services", "client"):
        for path in (ROOT / folder).rglob("*.py"):
            constants = [node for node in ast.walk(ast.parse(path.read_text()))
                         if isinstance(node, ast.Constant)]  # fmt: skip
            texts += [str(node.value) for node in constants]
    assert len(texts) > 1000
    assert not [text for text in texts if POSSESSIVE.search(text)]
