"""A process that captures without end, to be killed. Its settings come from the environment.

    python -m tests.integration.proxy.capture.capturing MOST WAITING

It prints the id of its producer, then hands over exchanges until it is killed or, on SIGTERM,
drains and prints how many are left. It hands over at most MOST, and none while WAITING wait to be
published: however slow the machine is, they are soon drained.
"""

import asyncio
import signal
import sys

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import Captures

from .servers import RULES, hand_over

_PAUSE_SECONDS = 0.01


async def main(most: float, waiting: int) -> None:
    """Hand over exchanges, one after the other."""
    settings = ProxySettings()
    captures = Captures(settings, [RULES])
    await captures.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(captures.producer, flush=True)
    number = 0
    while not stop.is_set():
        if number < most and captures.counts.queued < waiting:
            number += 1
            hand_over(captures, number)
        await asyncio.sleep(_PAUSE_SECONDS)
    queued = await captures.stop(settings.proxy_grace_seconds)
    print(f"left {queued}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), int(sys.argv[2])))
