"""A mutant: one edit of the product that breaks one promise."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
PACKAGE = Path("services", "inference_store")


class NotOnce(Exception):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`file` is a path in services/inference_store, `tests` are arguments of pytest."""

    name: str
    promise: str
    file: str
    old: str
    new: str
    command: Literal["unit", "integration", "faults"]
    """The target of make whose tests must detect it."""
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Edit the file of the tree that begins at `root`. Raise NotOnce."""
        path = root / PACKAGE / self.file
        path.write_text(self.edit(path.read_text()))

    def edit(self, text: str) -> str:
        """Return the file's text with the fault in it. Raise NotOnce."""
        count = text.count(self.old)
        if count != 1:
            raise NotOnce(f"{self.name}: {count} times in {self.file}, not once:\n{self.old}")
        return text.replace(self.old, self.new)
