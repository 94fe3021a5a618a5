"""How right a model was, by the ground truth of the inferences that match."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypedDict

from inference_store_client.errors import SettingsError, warn
from inference_store_client.question import Question
from inference_store_client.reading import fetch_plain
from inference_store_client.requests import make_request
from inference_store_client.transport import Transport

EvaluationTask: TypeAlias = Literal["labels", "boxes", "numbers"]


class EvaluationOptions(TypedDict, total=False):
    """How it is evaluated; what is left out is as the store has it."""

    task: EvaluationTask | None
    source: str | None
    """Whose truth counts; left out: of each inference the set that was written last."""
    iou: float | None
    """Of boxes: from which overlap on one is found."""
    score: float | None
    """Of boxes: the least score that counts."""
    label: str | None
    """Of boxes: only those with this label."""
    most_labels: int | None


async def evaluate(
    transport: Transport,
    question: Question,
    group_by: str | Mapping[str, Any] | None,
    options: EvaluationOptions,
) -> Mapping[str, Any]:
    """Return the answer of the API, and warn of what it warns of."""
    if question.limit is not None:
        raise SettingsError("an evaluation is of all that match: leave `limit` and `sample` out")
    given = {"group_by": group_by, **options}
    body = {
        **question.list_conditions(),
        **{name: value for name, value in given.items() if value is not None},
    }
    request = make_request("POST", f"{question.path}/evaluate", body=body)
    answer: Mapping[str, Any] = await fetch_plain(transport, request)
    warn(answer["warnings"])
    return answer
