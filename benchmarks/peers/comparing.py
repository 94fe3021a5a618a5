"""One question put to us and to a peer: first that both answer alike, then how long each takes."""

import sys
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, Protocol, TypeAlias

from benchmarks.query.asking import Asked, Asker
from benchmarks.query.measure import Figures, measured

from .questions import Put, Question

Ask: TypeAlias = Callable[[Any], Awaitable[Asked]]
# So many times the answers are held against each other before the clock is looked at.
_HELD = 3


class Peer(Protocol):
    """Somebody else who is asked."""

    async def page(self, put: Put) -> Asked:
        """The newest 50."""
        ...


async def compared(
    question: Question, asker: Asker, peer: Peer, *, kind: str, runs: int, seconds: float
) -> dict[str, Any]:
    """Figures of both, over the same values. Ends the run where they answer differently."""
    of_body: Ask = getattr(asker, kind)

    async def ours(put: Put) -> Asked:
        return await of_body(put.body)

    theirs: Ask = getattr(peer, kind)
    await _agree(question, ours, theirs)
    lines = {}
    for who, ask in (("ours", ours), ("theirs", theirs)):
        line = await measured(
            question.name,
            kind,
            partial(_asked, ask, question),
            runs=runs,
            seconds=seconds,
        )
        _say(who, line)
        lines[who] = line.as_json()
    return lines


async def _asked(ask: Ask, question: Question, number: int) -> Asked:
    return await ask(put_of(question, number))


def put_of(question: Question, number: int) -> Put:
    """The values of a run, the same for everybody."""
    return question.make(Random(f"{question.name} {number}"))


async def _agree(question: Question, ours: Ask, theirs: Ask) -> None:
    for number in range(_HELD):
        put = put_of(question, number)
        one, other = await ours(put), await theirs(put)
        if not one.whole or (one.rows, one.uids) != (other.rows, other.uids):
            sys.exit(f"{question.name}: other answers to {put}: {one} and {other}")


def _say(who: str, line: Figures) -> None:
    print(
        f"{line.name:30} {line.kind:6} {who:6} median {line.median:8.1f} ms, p99 {line.p99:8.1f}"
        f" ({line.runs} runs, {line.rows:,.0f} rows)",
        flush=True,
    )
