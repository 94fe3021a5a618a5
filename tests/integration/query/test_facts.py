"""What is known of an inference as it arrives is what its rows will have."""

import pytest

from inference_store.index.registrations import Registration
from inference_store.query.facts import build_facts
from inference_store.query.properties import PROPERTIES
from tests.integration.query import typed_rows
from tests.integration.query.typed_rows import Maker
from tests.integration.stored import START, indexable

_REGISTRATION = Registration(1, "m", "p", None, None, (), None, "api", 1, START, START)


@pytest.mark.parametrize("seed", range(3))
def test_facts_are_those_of_the_rows(seed: int) -> None:
    for made in Maker(seed).made("m", 50):
        found = build_facts(indexable(made, _REGISTRATION), indexed_at=START)
        expected = typed_rows.facts_of(made)
        properties = dict(expected.properties) | {"project_id": ("p",)}
        properties["inference_ids"] = found.properties["inference_ids"]
        assert set(expected.properties["inference_ids"]) == set(found.properties["inference_ids"])
        assert dict(found.properties) == properties
        assert (found.metadata, found.predictions) == (expected.metadata, expected.predictions)
        assert set(found.properties) <= set(PROPERTIES)
