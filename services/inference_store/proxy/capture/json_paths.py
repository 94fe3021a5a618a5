"""A path into JSON, like `inputs[].parameters.user`, and changing what stands there."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from inference_store.inference.json_text import Json

Change: TypeAlias = Callable[[Json], Json]
"""A value's replacement; GONE: it is taken out."""
GONE = object()
ELEMENTS = "[]"
_STEP = re.compile(r'"((?:[^"\\]|\\.)*)"|([^.\[\]"]+)|(\[\])|(\.)')


def steps_of(path: str) -> tuple[str, ...]:
    """The steps of a path: names, and ELEMENTS for all elements of an array.

    A name with dots is written in double quotes. Raises ValueError for no path.
    """
    steps: list[str] = []
    at = 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise ValueError(f"{path!r} is no path: character {at} cannot be read")
        quoted, name, elements, _ = found.groups()
        if quoted is not None:
            steps.append(re.sub(r"\\(.)", r"\1", quoted))
        elif name or elements:
            steps.append(name or elements)
        at = found.end()
    if not steps:
        raise ValueError("a path has at least one name")
    return tuple(steps)


def change_at(document: Json, steps: Sequence[str], change: Change) -> None:
    """Change every value that a path leads to, in place; what is not there is left alone."""
    *way, last = steps
    for holder in list(_holders(document, way)):
        if last == ELEMENTS and isinstance(holder, list):
            holder[:] = [new for each in holder if (new := change(each)) is not GONE]
        elif isinstance(holder, dict) and last in holder:
            new = change(holder[last])
            if new is GONE:
                del holder[last]
            else:
                holder[last] = new


def _holders(document: Json, way: Sequence[str]) -> Iterator[Json]:
    if not way:
        yield document
        return
    step, *rest = way
    if step == ELEMENTS and isinstance(document, list):
        for each in document:
            yield from _holders(each, rest)
    elif isinstance(document, dict) and step in document:
        yield from _holders(document[step], rest)
