"""Matches the answers of a stream to its requests: by the id, else in order."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from inference_store.proxy.protocols.problems import Problem, join_problems
from inference_store.proxy.protocols.v2.tensors import InferResponse


@dataclass(frozen=True, slots=True)
class MatchedAnswers:
    """The answers of each request, in the order of the requests."""

    answers: Sequence[Sequence[InferResponse]]
    problem: Problem | None = None
    """The problem with answers that match no request; None if there is none."""


def match(ids: Sequence[str | None], answers: Sequence[InferResponse]) -> MatchedAnswers:
    """Match answers to a stream's requests, at least one, whose ids are `ids`, in order.

    Ids may be empty, repeat, or be made by the server: such answers belong to the requests that
    share the id, or else to those that no id answers, one each in order. The rest is added to the
    last of them, so that nothing is lost.
    """
    requests, by_id = defaultdict[str, list[int]](list), defaultdict[str, list[InferResponse]](list)
    for index, name in enumerate(ids):
        requests[name or ""].append(index)
    for answer in answers:
        by_id[answer.id if answer.id in requests and answer.id else ""].append(answer)
    nameless = by_id.pop("", [])
    matched: list[list[InferResponse]] = [[] for _ in ids]
    problems = [_assign(requests[name], group, matched) for name, group in by_id.items()]
    if nameless:
        waiting = requests.get("") or [at for at, group in enumerate(matched) if not group]
        problems.append(_assign(waiting, nameless, matched))
    return MatchedAnswers(matched, join_problems(problems))


def _assign(
    indexes: Sequence[int],
    answers: Sequence[InferResponse],
    matched: Sequence[list[InferResponse]],
) -> Problem | None:
    """Assign one answer to each request, in order, and the rest to the last one; all to a single
    one."""
    for index, answer in zip(indexes, answers, strict=False):
        matched[index].append(answer)
    rest = answers[len(indexes) :]
    if rest:
        matched[indexes[-1] if indexes else -1].extend(rest)
    if not rest or len(indexes) == 1:
        return None
    sentence = f"{len(rest)} answers of the stream belong to no request that ids or order tell"
    return Problem(sentence, ("response", "not_divided"))
