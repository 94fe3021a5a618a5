"""Whose answer is whose in a stream: by the id, else in order."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from inference_store.proxy.protocols.problems import Problem, joined
from inference_store.proxy.protocols.v2.tensors import InferResponse


@dataclass(frozen=True, slots=True)
class Matched:
    """The answers of each request, in the order of the requests."""

    answers: Sequence[Sequence[InferResponse]]
    problem: Problem | None = None
    """What ids do not tell; None: nothing."""


def match(ids: Sequence[str | None], answers: Sequence[InferResponse]) -> Matched:
    """The answers of a stream's requests, of which `ids` are the ids, in order; at least one.

    Ids may be empty, repeat, or be made by the server: such answers belong to the requests that
    share the id, or else to those that no id answers, one each in order. What is left over is with
    the last of them, for nothing may be lost.
    """
    requests, named = defaultdict[str, list[int]](list), defaultdict[str, list[InferResponse]](list)
    for place, name in enumerate(ids):
        requests[name or ""].append(place)
    for each in answers:
        named[each.id if each.id in requests and each.id else ""].append(each)
    nameless = named.pop("", [])
    found: list[list[InferResponse]] = [[] for _ in ids]
    problems = [_give(requests[name], given, found) for name, given in named.items()]
    if nameless:
        waiting = requests.get("") or [at for at, given in enumerate(found) if not given]
        problems.append(_give(waiting, nameless, found))
    return Matched(found, joined(problems))


def _give(
    places: Sequence[int],
    answers: Sequence[InferResponse],
    found: Sequence[list[InferResponse]],
) -> Problem | None:
    """One each, in order, and what is left over to the last; to one that is alone, all."""
    for place, answer in zip(places, answers, strict=False):
        found[place].append(answer)
    left = answers[len(places) :]
    if left:
        found[places[-1] if places else -1].extend(left)
    if not left or len(places) == 1:
        return None
    sentence = f"{len(left)} answers of the stream belong to no request that ids or order tell"
    return Problem(sentence, ("response", "not_divided"))
