"""Numbers with their nouns, for sentences."""


def write_count(count: int, noun: str, plural: str = "") -> str:
    """Return a number and what it counts: `1 file`, `2,000 files`; `plural`: not noun + s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
