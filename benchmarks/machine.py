"""The machine that a benchmark ran on."""

import os
import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Cores, processor, memory, load and Python of this machine."""
    model = ""
    if (cpus := Path("/proc/cpuinfo")).exists():
        lines = cpus.read_text().splitlines()
        model = next((line.split(":")[1] for line in lines if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "processor": model.strip() or platform.processor(),
        "memory GiB": round(memory),
        "load before": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
