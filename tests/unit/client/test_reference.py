"""The reference of the client names everything that is public."""

import re
from pathlib import Path

import pytest

import inference_store_client as package
from inference_store_client import filters

_PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "python-client.md").read_text()
# They make requests, and no expressions.
_INNER = {"Condition", "Expression", "Filter", "Names", "Value", "encode_filter"}


@pytest.mark.parametrize("name", sorted({*package.__all__, *filters.__all__} - _INNER))
def test_a_public_name_is_there(name: str) -> None:
    assert re.search(rf"`{name}\b", _PAGE)


@pytest.mark.parametrize("name", ["Store", "Model", "Inferences", "Inference", "Blob"])
def test_every_method_of_a_class_is_there(name: str) -> None:
    section = _PAGE.partition(f"<!-- client {name} -->")[2].partition(f"<!-- /client {name} -->")[0]
    methods = [method for method in vars(getattr(package, name)) if not method.startswith("_")]
    assert methods
    assert [method for method in methods if f"| `{method}" not in section] == []
