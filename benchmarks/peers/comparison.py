"""One question put to us and to a peer: first that both answer alike, then how long each takes."""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Protocol, TypeAlias

from benchmarks.query.asker import Answer, Asker
from benchmarks.query.measure import Figures, measure

from .questions import Put, Question

Ask: TypeAlias = Callable[[Any], Awaitable[Answer]]
# So many times the answers are held against each other before the clock is looked at.
_HELD = 3


class Peer(Protocol):
    """Somebody else who is asked."""

    async def page(self, put: Put) -> Answer:
        """The newest 50."""
        ...


async def compare(
    question: Question, asker: Asker, peer: Peer, *, kind: str, runs: int, seconds: float
) -> dict[str, Any]:
    """Return figures of both, over the same values. Ends the run where they answer differently."""
    of_body: Ask = getattr(asker, kind)

    async def ours(put: Put) -> Answer:
        return await of_body(put.body)

    theirs: Ask = getattr(peer, kind)
    await _check_agreement(question, ours, theirs)
    lines = {}
    for who, ask in (("ours", ours), ("theirs", theirs)):
        line = await measure(
            question.name,
            kind,
            partial(_ask, ask, question),
            runs=runs,
            seconds=seconds,
        )
        _print_line(who, line)
        lines[who] = line.as_json()
    return lines


async def _ask(ask: Ask, question: Question, number: int) -> Answer:
    return await ask(draw_put(question, number))


def draw_put(question: Question, number: int) -> Put:
    """Return the values of a run, the same for everybody."""
    return question.make(Random(f"{question.name} {number}"))


async def _check_agreement(question: Question, ours: Ask, theirs: Ask) -> None:
    for number in range(_HELD):
        put = draw_put(question, number)
        our_answer, their_answer = await ours(put), await theirs(put)
        if not our_answer.whole or (our_answer.rows, our_answer.uids) != (
            their_answer.rows,
            their_answer.uids,
        ):
            sys.exit(f"{question.name}: other answers to {put}: {our_answer} and {their_answer}")


def _print_line(who: str, line: Figures) -> None:
    print(
        f"{line.name:30} {line.kind:6} {who:6} median {line.median:8.1f} ms, p99 {line.p99:8.1f}"
        f" ({line.runs} runs, {line.rows:,.0f} rows)",
        flush=True,
    )
