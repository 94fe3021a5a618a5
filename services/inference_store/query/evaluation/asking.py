"""What every part of an evaluation reads by: the sets that count, and the slices."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_store.query.aggregates.answer import format_value
from inference_store.query.aggregates.collector import Collector, Groups
from inference_store.query.aggregates.statement import NUMBER, Column, Dimension, Key, Statement

from .evaluation import MOST_SLICES, Evaluation, Figure, MainFigure, Slice, Slices
from .figures import FEW
from .filters import find_group
from .truth_rows import Rows, Sets, column


@dataclass(frozen=True, slots=True)
class Asked:
    """An evaluation whose names are known, and the sets that count. `group`: its slices."""

    evaluation: Evaluation
    collector: Collector
    sets: Sets
    group: Dimension | None = None

    async def add_up(self, rows: Rows, columns: Sequence[Column], *groups: Dimension) -> Groups:
        """Return the columns of each group of such rows, and their `NUMBER`."""
        leads = column(rows, "uid", "string")
        return await self.collector.collect(Statement(groups, (NUMBER, *columns), leads))

    async def add_up_slices(self, rows: Rows, *columns: Column) -> Groups:
        """Return the columns of each slice; none without slices."""
        return {} if self.group is None else await self.add_up(rows, columns, self.group)

    def show_slices(
        self,
        name: MainFigure,
        whole: Figure,
        found: Groups,
        compute: Callable[[Mapping[Column, Any]], Figure],
    ) -> Slices | None:
        """Return the figure of each slice, and how much worse it is than the `whole`."""
        by, dimension, source = self.evaluation.group_by, self.group, self.evaluation.source
        if by is None or dimension is None:
            return None
        items, are_labels = [], name == "accuracy"
        for key in choose_slices(found):
            figure = compute(found[key])
            items.append(
                Slice(
                    value=format_value(dimension, key[0]),
                    filter=find_group(by, dimension, key[0], source, labels=are_labels),
                    labelled=found[key][NUMBER],
                    figure=figure,
                    worse=_compare(name, whole.value, figure.value),
                    too_few=found[key][NUMBER] < FEW,
                )
            )
        items.sort(key=lambda one: (one.too_few, one.worse is None, -(one.worse or 0)))
        return Slices(by=by.name, figure=name, items=items, others=len(found) - len(items))


def choose_slices(found: Groups) -> list[Key]:
    """Return the slices that are shown: those with the most inferences."""
    return sorted(found, key=lambda key: (-found[key][NUMBER], str(key)))[:MOST_SLICES]


def _compare(name: MainFigure, whole: float | None, own: float | None) -> float | None:
    if whole is None or own is None:
        return None
    return own - whole if name == "mae" else whole - own
