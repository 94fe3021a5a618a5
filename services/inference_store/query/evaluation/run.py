"""Runs an evaluation, from its names to its figures."""

from dataclasses import replace
from functools import partial
from typing import Any, Final, get_args

from sqlalchemy.ext.asyncio import AsyncConnection

from inference_store.index.registrations import Registration
from inference_store.inference.task_types import task_type_of
from inference_store.query.aggregates.collector import Collector
from inference_store.query.aggregates.operands import find_names
from inference_store.query.aggregates.run import read_dimension
from inference_store.query.aggregates.statement import NUMBER, Dimension
from inference_store.query.deadline import Deadline
from inference_store.query.plan import Query
from inference_store.query.preparation import UnknownKeys
from inference_store.query.search import count

from .asking import Asked
from .boxes import evaluate_boxes
from .evaluation import Evaluated, Evaluation, SourceCount, Task
from .figures import FEW
from .labels import evaluate_labels
from .numbers import evaluate_numbers
from .truth_rows import Sets, column, select_kinds

_EVALUATE: Final[dict[Task, Any]] = {
    "labels": evaluate_labels,
    "boxes": evaluate_boxes,
    "numbers": evaluate_numbers,
}


async def evaluate(
    connection: AsyncConnection,
    model: Registration,
    query: Query,
    evaluation: Evaluation,
    *,
    deadline: Deadline,
    unknown_keys: UnknownKeys = "refuse",
) -> Evaluated:
    """Compare what is true with what was predicted, of the inferences that match.

    Raises Invalid, UnknownKey, ImpossibleComparison, TooManyGroups, TooManyQueries, OutOfTime.
    """
    collector = Collector(connection, {model.model: model}, query, deadline)
    asked = Asked(evaluation, collector, Sets(evaluation.source))
    by, warnings = evaluation.group_by, list[str]()
    if by is not None:
        of = by.histogram.of if by.histogram else by.of
        names = await find_names(connection, [model.model], [of] if of else [], unknown_keys)
        asked = replace(asked, group=await read_dimension(collector, names, by, "group_by"))
        warnings += names.warnings
    sources = await _count_sources(asked)
    if evaluation.source is None and len(sources) < 2:
        asked = replace(asked, sets=Sets(several=False))
    labelled = await _count_labelled(asked, sources)
    task = evaluation.task or await _find_task(asked, model)
    report, slices = await _EVALUATE[task](asked)
    return Evaluated(
        task=task,
        inferences=await count(connection, collector.query, deadline=deadline),
        labelled=labelled,
        too_few=labelled < FEW,
        sources=sources,
        slices=slices,
        warnings=tuple(warnings),
        **{task: report},
    )


async def _count_sources(asked: Asked) -> list[SourceCount]:
    every = Sets(several=False)
    found = await asked.add_up(every, (), Dimension(column(every, "source", "string")))
    counts = sorted((-sums[NUMBER], source) for (source,), sums in found.items())
    return [SourceCount(source=source, inferences=-number) for number, source in counts]


async def _count_labelled(asked: Asked, sources: list[SourceCount]) -> int:
    """Count inferences with a set; of several sources one may have several."""
    if asked.sets.source is None and asked.sets.several:
        found = await asked.add_up(asked.sets, ())
        return sum(sums[NUMBER] for sums in found.values())
    named = asked.sets.source
    return sum(one.inferences for one in sources if named in {None, one.source})


async def _find_task(asked: Asked, model: Registration) -> Task:
    """Return the task of the model's type; of one without, what most of the truth is."""
    columns = task_type_of(model.task_type).columns
    if "xmin" in columns:
        return "boxes"
    if columns and "value" not in columns:
        return "labels"
    kinds = partial(select_kinds, asked.sets)
    found = await asked.add_up(kinds, (), Dimension(column(kinds, "kind", "string")))
    counts = {kind: sums[NUMBER] for (kind,), sums in found.items()}
    # of none of the three: labels
    return max(get_args(Task), key=lambda task: counts.get(task, 0))
