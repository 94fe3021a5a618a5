"""Numbers of things in sentences: 1 span, 2 spans."""


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return the number and its noun. `plural`: if it is not `singular` and an s; both may contain
    a verb."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"
