"""What is said of the filter language."""

from pydantic import Field

from inference_store.api.shown import Shown
from inference_store.query.cql2 import Conformance


class ShownClass(Shown, of=Conformance):
    """A conformance class of CQL2."""

    name: str = Field(examples=["basic-cql2"])
    uri: str


class ShownConformance(Shown):
    """The conformance classes of CQL2."""

    conformsTo: list[str]
    """The URIs of those that are kept."""
    classes: list[ShownClass]
