"""Locks of Postgres differ only by their numbers."""

import re
from collections import Counter
from pathlib import Path

SERVICES = Path(__file__).parents[3] / "services" / "inference_store"


def test_every_lock_has_a_number_of_its_own() -> None:
    text = "\n".join(path.read_text() for path in SERVICES.rglob("*.py"))
    counts = Counter(re.findall(r"= (7_302_\d{3})\b", text))
    assert len(counts) > 5
    assert {number for number, count in counts.items() if count > 1} == set()
