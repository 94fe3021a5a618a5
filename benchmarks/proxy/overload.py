"""Memory over minutes of more calls than can be captured: S3 is stopped, callers do not wait."""

import time
from typing import Any

from .measuring import Loading
from .proxy_process import Proxy
from .workloads import workloads

WORKLOAD = "REST JSON image 100 kB"
_EVERY_SECONDS = 0.5


def overloaded(proxy: Proxy, cores: frozenset[int], *, minutes: float) -> dict[str, Any]:
    """As many calls as it takes for so long; its memory (MiB) at each tenth, and how much it moved
    after the first tenth, in which the budget fills."""
    before = proxy.resident()
    load = Loading(WORKLOAD, proxy.ports.of(workloads()[WORKLOAD]), cores, seconds=60 * minutes)
    began, seen = time.monotonic(), []
    while load.running:
        seen.append(proxy.resident())
        time.sleep(max(0.0, began + _EVERY_SECONDS * len(seen) - time.monotonic()))
    found = load.result()
    settled = seen[len(seen) // 10 :]
    return {
        "workload": WORKLOAD,
        "minutes": minutes,
        "before": before,
        "tenths": [seen[len(seen) * tenth // 10] for tenth in range(10)] + [seen[-1]],
        "least": min(settled),
        "most": max(settled),
        "rate": found["rate"],
        "failed": found["failed"],
        "p99": found["p99"],
        "captures": proxy.counted(),
    }
