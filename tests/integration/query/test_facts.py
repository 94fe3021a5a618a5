"""The facts of an inference that arrives are those that its rows will have."""

import pytest

from inference_store.index.registrations import Registration
from inference_store.query.facts import build_facts
from inference_store.query.properties import PROPERTIES
from tests.integration.query import typed_rows
from tests.integration.query.typed_rows import InferenceMaker
from tests.integration.stored_inferences import START, make_indexable

_REGISTRATION = Registration(1, "m", "p", None, None, (), None, "api", 1, START, START)


@pytest.mark.parametrize("seed", range(3))
def test_facts_are_those_of_the_rows(seed: int) -> None:
    for inference in InferenceMaker(seed).make_inferences("m", 50):
        facts = build_facts(make_indexable(inference, _REGISTRATION), indexed_at=START)
        expected = typed_rows.derive_facts(inference)
        properties = dict(expected.properties) | {"project_id": ("p",)}
        properties["inference_ids"] = facts.properties["inference_ids"]
        assert set(expected.properties["inference_ids"]) == set(facts.properties["inference_ids"])
        assert dict(facts.properties) == properties
        assert (facts.metadata, facts.predictions) == (expected.metadata, expected.predictions)
        assert set(facts.properties) <= set(PROPERTIES)
