"""Tags of the inferences that match, as they are changed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .question import Question
from .reading import count, fetch, read_all
from .requests import make_request
from .streaming import collect
from .transport import Transport
from .values.answers import TaggedInferences


async def change_tags(
    transport: Transport,
    question: Question,
    *,
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
) -> TaggedInferences:
    """Add and remove tags of what matches now; what the question takes only a part of is read."""
    body: dict[str, Any] = {"add": list(add), "remove": list(remove)}
    if question.limit is not None:
        taken = await collect(read_all(transport, replace(question, fields=("uid",)), dict))
        if not taken:
            return TaggedInferences(changed=0, unchanged=0, missing=(), refused=(), remaining=())
        body["inference_ids"] = [f"uid:{item['uid']}" for item in taken]
    else:
        body |= question.list_conditions()
        if question.inference_ids is None:
            body["expected"] = await count(transport, question)
    request = make_request("POST", f"{question.path}/tags", body=body)
    return await fetch(transport, TaggedInferences, request)
