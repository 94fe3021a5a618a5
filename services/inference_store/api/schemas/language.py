"""What is said of the filter language."""

from pydantic import Field

from inference_store.api.shown import Shown


class ShownClass(Shown):
    """A conformance class of CQL2."""

    name: str = Field(examples=["basic-cql2"])
    title: str
    meaning: str
    kept: bool
    """Wholly; single operations of a class may be kept if it is not."""
    uri: str


class ShownConformance(Shown):
    """The conformance classes of CQL2."""

    conformsTo: list[str]
    """The URIs of those that are kept."""
    classes: list[ShownClass]
