"""Numbers of things in sentences: 1 span, 2 spans."""


def counted(number: int, one: str, several: str | None = None) -> str:
    """The number and its noun. `several`: where it is not `one` and an s; a verb may be in both."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"
