"""What was measured, round by round, and its table: medians, with how far the rounds lie apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was measured in every round. `floors`: what it is a share of, likewise."""

    name: str
    rates: Sequence[float]
    floors: Sequence[float] = ()
    bar: str = ""
    # process → microseconds of CPU for each, the median round's
    cpu: Mapping[str, float] | None = None

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' ratios: what was measured side by side is compared."""
        if not self.floors:
            return None
        return median(rate / floor for rate, floor in zip(self.rates, self.floors, strict=True))


PROCESSES = ("retention", "postgres", "minio")


def table(unit: str, lines: Sequence[Line]) -> str:
    """A table in Markdown."""
    heads = [f"{unit}/s", "rounds", "of the floor", "bar", *(f"{name} µs" for name in PROCESSES)]
    rows = [f"| {unit} | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    return "\n".join([*rows, *(_row(line) for line in lines)])


def _row(line: Line) -> str:
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    rounds = ", ".join(f"{rate:,.0f}" for rate in line.rates)
    cpu = [f"{line.cpu[name]:.0f}" if line.cpu and name in line.cpu else "" for name in PROCESSES]
    cells = [line.name, f"{median(line.rates):,.0f}", rounds, ratio, line.bar, *cpu]
    return f"| {' | '.join(cells)} |"
