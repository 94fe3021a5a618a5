"""A failpoint that holds up one task: the others of the process go on."""

import asyncio
import os
import signal

import pytest
from structlog.testing import capture_logs

from inference_store.platform.failpoints import failpoint_of_task

HERE = "retention.verify.before"


async def test_only_the_task_that_passes_is_held_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERENCE_STORE_FAILPOINT", f"{HERE}:2:stop")
    await failpoint_of_task("retention.row_delete.before")
    await failpoint_of_task(HERE)
    with capture_logs() as logs:
        held_up = asyncio.create_task(failpoint_of_task(HERE))
        await asyncio.sleep(0)
        assert logs, "it is held up"
        assert not held_up.done()
        # the second passing was this; a third is none of its business
        await failpoint_of_task(HERE)
        os.kill(os.getpid(), signal.SIGCONT)
        await asyncio.wait_for(held_up, 300)
    assert [(line["action"], line["failpoint"]) for line in logs] == [("held_up", HERE)]
