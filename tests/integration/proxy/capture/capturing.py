"""A process that captures without end, to be killed: settings from the environment.

    python -m tests.integration.proxy.capture.capturing [MOST]

Prints its producer's id, then works (hands over MOST exchanges, if that is given) until it is
killed or, on SIGTERM, drains and prints what is left.
"""

import asyncio
import signal
import sys

from inference_store.platform.settings import ProxySettings
from inference_store.proxy.capture import Captures

from .servers import hand_over

# Few enough that a busy machine keeps up: what waits long is lost when the process ends.
_PAUSE_SECONDS = 0.01


async def main(most: float) -> None:
    """Hand over one exchange after the other, at most so many."""
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
    left = await captures.stop(120)
    print(f"left {left}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(float((*sys.argv[1:], "inf")[0])))
