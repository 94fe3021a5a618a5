"""A table for a terminal."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from .rows import pick
from .text import measure, shorten

_GAP: Final = "  "
_LEAST_WIDTH: Final = 8
_MOST_WIDTH: Final = 60


@dataclass(frozen=True, slots=True)
class Table:
    """Columns with their widths, in columns of the terminal."""

    columns: Sequence[str]
    widths: Sequence[int]

    @classmethod
    def fit(cls, columns: Sequence[str], items: Sequence[Mapping[str, Any]]) -> Self:
        """Return a table that the items fit into; the widest columns are cut to the terminal."""
        cells = [[measure(pick(item, column)) for item in items] for column in columns]
        widths = [
            min(max([measure(column), *widths]), _MOST_WIDTH)
            for column, widths in zip(columns, cells, strict=True)
        ]
        most = shutil.get_terminal_size().columns - len(_GAP) * (len(columns) - 1)
        while sum(widths) > most and max(widths) > _LEAST_WIDTH:
            widths[widths.index(max(widths))] -= 1
        return cls(columns, widths)

    def format_head(self) -> str:
        """Return the line above the rows."""
        return self._join(self.columns)

    def format_row(self, item: Mapping[str, Any]) -> str:
        """Return the line of an inference."""
        return self._join([pick(item, column) for column in self.columns])

    def _join(self, cells: Iterable[str]) -> str:
        return _GAP.join(map(_pad, cells, self.widths)).rstrip()


def _pad(cell: str, width: int) -> str:
    cut = shorten(cell, width)
    return cut + " " * (width - measure(cut))
