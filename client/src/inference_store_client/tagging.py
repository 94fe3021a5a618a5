"""Tags of the inferences that match, step by step. No I/O."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .commands import Steps
from .question import Question
from .reading import count, fetch, read_all
from .requests import make_request
from .streaming import collect
from .values.answers import TaggedInferences


def change_tags(
    question: Question, *, add: Sequence[str] = (), remove: Sequence[str] = ()
) -> Steps[TaggedInferences]:
    """Add and remove tags of what matches now; what the question takes only a part of is read."""
    body: dict[str, Any] = {"add": list(add), "remove": list(remove)}
    if question.limit is not None:
        taken = yield from collect(read_all(replace(question, fields=("uid",)), dict))
        if not taken:
            return TaggedInferences(changed=0, unchanged=0, missing=(), refused=(), remaining=())
        body["inference_ids"] = [f"uid:{item['uid']}" for item in taken]
    else:
        body |= question.list_conditions()
        if question.inference_ids is None:
            body["expected"] = yield from count(question)
    request = make_request("POST", f"{question.path}/tags", body=body)
    return (yield from fetch(TaggedInferences, request))
