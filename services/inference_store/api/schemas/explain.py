"""What a query did, as it is shown."""

from pydantic import Field

from inference_store.api.shown import Shown
from inference_store.query import explain


class ExplainedStep(Shown, of=explain.ExplainStep):
    """One statement."""

    what: str = Field(examples=["let an index lead: Index Only Scan on metadata_number x8"])


class Explanation(Shown, of=explain.Explanation):
    """What a query did, for people: the words may change."""

    form: str | None = Field(examples=["metadata+prediction; time: inferences in order of time"])
    steps: list[ExplainedStep]
