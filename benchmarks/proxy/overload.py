"""Memory over minutes of more calls than can be captured: S3 is stopped, callers do not wait."""

import time
from typing import Any

from .measurement import RunningLoad
from .proxy_process import Proxy
from .workloads import workloads

WORKLOAD = "REST JSON image 100 kB"
_EVERY_SECONDS = 0.5


def measure_overload(proxy: Proxy, cores: frozenset[int], *, minutes: float) -> dict[str, Any]:
    """Call as often as it takes for so long; return its memory (MiB) at each tenth, and how much it
    moved after the first tenth, in which the budget fills."""
    before = proxy.resident()
    load = RunningLoad(WORKLOAD, proxy.ports.of(workloads()[WORKLOAD]), cores, seconds=60 * minutes)
    began, sizes = time.monotonic(), []
    while load.running:
        sizes.append(proxy.resident())
        time.sleep(max(0.0, began + _EVERY_SECONDS * len(sizes) - time.monotonic()))
    figures = load.result()
    settled = sizes[len(sizes) // 10 :]
    return {
        "workload": WORKLOAD,
        "minutes": minutes,
        "before": before,
        "tenths": [sizes[len(sizes) * tenth // 10] for tenth in range(10)] + [sizes[-1]],
        "least": min(settled),
        "most": max(settled),
        "rate": figures["rate"],
        "failed": figures["failed"],
        "p99": figures["p99"],
        "captures": proxy.counted(),
    }
