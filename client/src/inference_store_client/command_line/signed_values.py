"""Values that begin with `-`, such as `--sort -top_score`: argparse takes them for options."""

from collections.abc import Sequence
from typing import Final

_OPTIONS: Final = frozenset({"--sort", "--since", "--until"})


def join_values(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with such a value joined to its option: `--sort=-top_score`."""
    joined: list[str] = []
    for argument in arguments:
        is_value = argument.startswith("-") and not argument.startswith("--")
        if is_value and joined and joined[-1] in _OPTIONS:
            joined[-1] += f"={argument}"
        else:
            joined.append(argument)
    return joined
