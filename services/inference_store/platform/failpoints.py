"""Points where a test can kill this process, to prove that a crash there is harmless.

`INFERENCE_STORE_FAILPOINT=<name>` kills at the first passage, `<name>:3` at the third, and
`<name>:3:stop` stops there until SIGCONT, so that something else can happen meanwhile.
Unset, as in every real process, both functions do nothing.
"""

import asyncio
import os
import signal
from collections import Counter

import structlog

# All failpoints: the fault matrix kills once at each of them.
FAILPOINTS = (
    "export.list.before",
    "export.list.commit.after",
    "export.write.before",
    "export.write.named",
    "export.write.batch",
    "export.write.after",
    "export.write.commit.after",
    "export.finish.before",
    "export.finish.after",
    "export.finish.commit.after",
    "export.remove.before",
    "export.remove.after",
    "export.remove.commit.after",
    "ingester.poll.after",
    "ingester.get.before",
    "ingester.get.after",
    "ingester.write.before",
    "ingester.write.copy",
    "ingester.write.inferences",
    "ingester.write.children",
    "ingester.write.books",
    "ingester.sidecar.before",
    "ingester.sidecar.after",
    "ingester.commit.before",
    "ingester.commit.after",
    "ingester.kafka_commit.after",
    "ingester.retry.before",
    "ingester.retry.commit.before",
    "ingester.retry.commit.after",
    "ledger.intend.after",
    "ledger.put.before",
    "ledger.put.after",
    "ledger.effect.before",
    "ledger.effect.after",
    "metadata_edit.blob.before",
    "metadata_edit.blob.after",
    "orphans.batch.before",
    "orphans.batch.after",
    "orphans.claim.after",
    "orphans.forget.before",
    "orphans.forget.after",
    "partitions.create.before",
    "partitions.create.after",
    "reconcile.window.after",
    "rebuild.commit.before",
    "rebuild.commit.after",
    "retention.export_delete.before",
    "retention.export_delete.after",
    "retention.export_forget.after",
    "retention.aside.take.before",
    "retention.aside.take.after",
    "retention.mark.before",
    "retention.mark.after",
    "retention.claim.before",
    "retention.claim.after",
    "retention.object_delete.before",
    "retention.object_delete.after",
    "retention.verify.before",
    "retention.verify.after",
    "retention.row_delete.before",
    "retention.row_delete.after",
    "retention.note.before",
    "retention.note.after",
    "retention.finish.before",
    "retention.finish.after",
    "retention.certify.before",
    "retention.certify.leaves.after",
    "retention.certify.put.before",
    "retention.certify.put.after",
    "retention.certify.commit.after",
    "retention.certify.head.before",
    "retention.certify.head.after",
    "retention.run_start.before",
    "retention.run_start.after",
    "retention.run_finish.before",
    "retention.run_finish.after",
    "retention.span_close.before",
    "retention.span_close.after",
    "retention.frontier.before",
    "retention.frontier.after",
    "retention.partition_drop.before",
    "retention.partition_drop.after",
)
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
