"""What the conditions on metadata mean, without SQL: the same answer from the values themselves."""

from inference_store.store.metadata import Metadata

from .condition import Compared, Sent


def holds(condition: Compared | Sent, name: str, metadata: Metadata) -> bool:
    """Whether an inference with this metadata satisfies a condition on the key `name`."""
    values = [leaf for leaf in metadata.leaves if leaf.name == name]
    if isinstance(condition, Sent):
        sent = [*values, *(each for each in metadata.presences if each.name == name)]
        return bool(sent) == condition.sent
    family = condition.bound.family
    comparable = [leaf.value for leaf in values if leaf.family == family]
    return condition.operator.holds(comparable, condition.bound.value)
