"""Paths into JSON, like `inputs[].parameters.user`, and changes of the values that they lead to."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from inference_store.inference.json_text import Json

Change: TypeAlias = Callable[[Json], Json]
"""Returns a value's replacement; GONE if it is removed."""
GONE = object()
ELEMENTS = "[]"
_STEP = re.compile(r'"((?:[^"\\]|\\.)*)"|([^.\[\]"]+)|(\[\])|(\.)')


def parse_path(path: str) -> tuple[str, ...]:
    """Return the steps of a path: names, and ELEMENTS for all elements of an array.

    A name with dots is written in double quotes. Raises ValueError if the text is not a path.
    """
    steps: list[str] = []
    at = 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            raise ValueError(f"{path!r} is no path: character {at} cannot be read")
        quoted, name, elements, _ = match.groups()
        if quoted is not None:
            steps.append(re.sub(r"\\(.)", r"\1", quoted))
        elif name or elements:
            steps.append(name or elements)
        at = match.end()
    if not steps:
        raise ValueError("a path has at least one name")
    return tuple(steps)


def change_values(document: Json, steps: Sequence[str], change: Change) -> None:
    """Change every value that a path leads to, in place; what is not there is left alone."""
    *way, last = steps
    for holder in list(_find_holders(document, way)):
        if last == ELEMENTS and isinstance(holder, list):
            holder[:] = [new for item in holder if (new := change(item)) is not GONE]
        elif isinstance(holder, dict) and last in holder:
            new = change(holder[last])
            if new is GONE:
                del holder[last]
            else:
                holder[last] = new


def _find_holders(document: Json, way: Sequence[str]) -> Iterator[Json]:
    if not way:
        yield document
        return
    step, *rest = way
    if step == ELEMENTS and isinstance(document, list):
        for item in document:
            yield from _find_holders(item, rest)
    elif isinstance(document, dict) and step in document:
        yield from _find_holders(document[step], rest)
