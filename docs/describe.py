"""Write the tables of the docs again that are lists of the code: `make reference`.

A table lies between two marks of its page: `<!-- checks -->` and `<!-- /checks -->`. Settings are
divided by the classes that declare them, metrics by the service that sets them: `<!-- settings
KafkaSettings -->`, `<!-- metrics api -->`. A test holds each table to what this writes.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from .tables import FAMILIES, TABLES

PAGES: Final = Path(__file__).parent
_MARK: Final = re.compile(r"^<!-- (\w[\w ]*) -->\n.*?^<!-- /\1 -->$", re.MULTILINE | re.DOTALL)


def find_marks(page: str) -> Iterator[str]:
    """Yield the name of each table of a page."""
    yield from (mark for mark in _MARK.findall(page) if _is_known(mark))


def fill(page: str) -> str:
    """Return the page with its tables as they should be."""
    return _MARK.sub(_fill_one, page)


def _fill_one(found: re.Match[str]) -> str:
    mark = found[1]
    if not _is_known(mark):
        return found[0]
    return f"<!-- {mark} -->\n\n{_make(mark)}\n\n<!-- /{mark} -->"


def _is_known(mark: str) -> bool:
    return mark in TABLES or mark.split(maxsplit=1)[0] in FAMILIES


def _make(mark: str) -> str:
    family, *words = mark.split()
    return FAMILIES[family](*words) if family in FAMILIES else TABLES[mark]()


if __name__ == "__main__":
    for path in sorted(PAGES.rglob("*.md")):
        path.write_text(fill(path.read_text()))
