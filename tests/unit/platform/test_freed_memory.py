"""Memory that was freed goes back to the system."""

import asyncio

from inference_store.platform.freed_memory import keep_releasing, read_resident_bytes
from tests.polling import until

FLOOD = 256 << 20


async def measure() -> int:
    return read_resident_bytes()


async def test_what_a_flood_took_goes_back() -> None:
    """One block that stays at the end keeps all before it, unless it is released."""
    before = read_resident_bytes()
    releasing = asyncio.create_task(keep_releasing(0.05))
    await asyncio.sleep(0)  # it begins
    blocks = [b"x" * 100_000 + str(at).encode() for at in range(FLOOD // 100_000)]
    assert read_resident_bytes() > before + FLOOD // 2
    last = blocks.pop()
    blocks.clear()
    await until(measure, lambda size: size < before + FLOOD // 2)
    assert last
    releasing.cancel()
