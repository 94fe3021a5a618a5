"""A process that captures without end, to be killed. Its settings come from the environment.

    python -m tests.integration.proxy.capture.capturing [MOST]

It prints the id of its producer, then hands over exchanges (at most MOST, if given) until it is
killed or, on SIGTERM, drains and prints how many are left.
"""

import asyncio
import signal
import sys

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import Captures

from .servers import hand_over

# Slow enough for a busy machine: exchanges that wait long are lost when the process ends.
_PAUSE_SECONDS = 0.01


async def main(most: float) -> None:
    """Hand over exchanges, one after the other, at most `most`."""
    captures = Captures(ProxySettings())
    await captures.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(captures.producer, flush=True)
    number = 0
    while not stop.is_set():
        if number < most:
            number += 1
            hand_over(captures, number)
        await asyncio.sleep(_PAUSE_SECONDS)
    queued = await captures.stop(120)
    print(f"left {queued}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(float((*sys.argv[1:], "inf")[0])))
