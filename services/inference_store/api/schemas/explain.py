"""What a query did, as it is shown."""

from pydantic import Field

from inference_store.api.shown import Shown


class ExplainedStep(Shown):
    """One statement."""

    what: str = Field(examples=["let an index lead: Index Only Scan on metadata_number x8"])
    partitions: int
    """Partitions that its plan reads."""
    estimated_rows: int | None
    """Postgres' estimate; null for a caller who may not read every model, as it is made of all
    models' values together, and for what was not planned once more."""
    actual_rows: int | None
    """Rows that came, or were counted; null: time ran out."""
    milliseconds: float


class Explanation(Shown):
    """What a query did, for people: the words may change."""

    form: str | None = Field(examples=["metadata+prediction; time: inferences in order of time"])
    """The kinds of its conditions, and how its order was made."""
    steps: list[ExplainedStep]
    """The statements; after the first 50 the others are told as one."""
    partitions_visited: int
    """Partitions that the plans of its statements read."""
    partitions_total: int
    """Partitions of the time that was asked for."""
    milliseconds: float
    """Everything, the planning for this explanation too."""
