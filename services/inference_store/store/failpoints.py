"""Places where a test can kill this process, to prove that a crash there is harmless.

`INFERENCE_STORE_FAILPOINT=<name>` kills at the first passing, `<name>:3` at the third, and
`<name>:3:stop` stops there until SIGCONT, so that something else can happen meanwhile.
Unset, as in every real process, `failpoint` does nothing.
"""

import os
import signal
from collections import Counter

# Every place: the fault matrix kills once at each of them.
FAILPOINTS = (
    "ingester.poll.after",
    "ingester.get.before",
    "ingester.get.after",
    "ingester.write.before",
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


def failpoint(name: str) -> None:
    """Kill this process, as `kill -9` would, or stop it, if the environment asks for it here."""
    wanted = os.environ.get("INFERENCE_STORE_FAILPOINT")
    if wanted is None:
        return
    place, nth, how = (*wanted.split(":"), "", "")[:3]
    if place != name:
        return
    _passed[name] += 1
    if _passed[name] == int(nth or 1):
        os.kill(os.getpid(), signal.SIGSTOP if how == "stop" else signal.SIGKILL)
