"""Points where a test can kill this process, to prove that a crash there is harmless.

`INFERENCE_STORE_FAILPOINT=<name>` kills at the first passage, `<name>:3` at the third, and
`<name>:3:stop` stops there until SIGCONT, so that something else can happen meanwhile.
Unset, as in every real process, both functions do nothing.
"""

import asyncio
import os
import signal
from collections import Counter
from typing import Final

import structlog

# Where a process can be killed, and at which moments there.
_PLACES: Final = {
    "copy": ("noted", "put", "moved", "deleted"),
    "export.list": ("before", "commit.after"),
    "export.write": ("before", "named", "batch", "after", "commit.after"),
    "export.finish": ("before", "after", "commit.after"),
    "export.remove": ("before", "after", "commit.after"),
    "ingester.poll": ("after",),
    "ingester.get": ("before", "after"),
    "ingester.write": ("before", "copy", "inferences", "children", "books"),
    "ingester.sidecar": ("before", "after"),
    "ingester.commit": ("before", "after"),
    "ingester.kafka_commit": ("after",),
    "ingester.retry": ("before", "commit.before", "commit.after"),
    "ledger.intend": ("after",),
    "ledger.put": ("before", "after"),
    "ledger.effect": ("before", "after"),
    "metadata_edit.blob": ("before", "after"),
    "orphans.batch": ("before", "after"),
    "orphans.claim": ("after",),
    "orphans.forget": ("before", "after"),
    "partitions.create": ("before", "after"),
    "reconcile.window": ("after",),
    "rebuild.commit": ("before", "after"),
    "replay.send": ("before", "noted", "sent", "after"),
    "retention.export_delete": ("before", "after"),
    "retention.export_forget": ("after",),
    "retention.aside.take": ("before", "after"),
    "retention.mark": ("before", "after"),
    "retention.claim": ("before", "after"),
    "retention.object_delete": ("before", "after"),
    "retention.rewrite": ("noted", "put", "older", "after"),
    "retention.verify": ("before", "after"),
    "retention.row_delete": ("before", "after"),
    "retention.note": ("before", "after"),
    "retention.finish": ("before", "after"),
    "retention.certify": ("before", "leaves.after"),
    "retention.certify.put": ("before", "after"),
    "retention.certify.head": ("before", "after"),
    "retention.run_start": ("before", "after"),
    "retention.run_finish": ("before", "after"),
    "retention.span_close": ("before", "after"),
    "retention.frontier": ("before", "after"),
    "retention.partition_drop": ("before", "after"),
}
FAILPOINTS: Final = tuple(
    f"{place}.{moment}" for place, moments in _PLACES.items() for moment in moments
)
"""All of them: the fault matrix kills once at each."""
_passed: Counter[str] = Counter()
_log = structlog.get_logger()


def failpoint(name: str) -> None:
    """Kill this process, as `kill -9` would, or stop it, if the environment names this
    failpoint."""
    how = _find_action(name)
    if how is not None:
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)


async def failpoint_of_task(name: str) -> None:
    """Act as `failpoint`, but let `stop` hold up only this task: another may be in a transaction.

    If the process stopped, a task that waits for the other's lock would wait for this one.
    """
    how = _find_action(name)
    if how == "stop":
        await _wait_for_signal(name)
    elif how is not None:
        os.kill(os.getpid(), signal.SIGKILL)


def _find_action(name: str) -> str | None:
    setting = os.environ.get("INFERENCE_STORE_FAILPOINT")
    if setting is None:
        return None
    point, nth, how = (*setting.split(":"), "", "")[:3]
    if point != name:
        return None
    _passed[name] += 1
    return how if _passed[name] == int(nth or 1) else None


async def _wait_for_signal(name: str) -> None:
    """Log that a task is held up here, and wait for SIGCONT."""
    continued, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCONT, continued.set)
    try:
        _log.info("held up", action="held_up", failpoint=name)
        await continued.wait()
    finally:
        loop.remove_signal_handler(signal.SIGCONT)
