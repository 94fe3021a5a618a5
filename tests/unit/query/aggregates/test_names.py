"""Names of measures: the types of their keys are listed once."""

from datetime import UTC, datetime
from typing import Any, cast

from inference_store.index.key_registry import KeySeen, TypeSeen
from inference_store.query.aggregates.aggregation import Name
from inference_store.query.aggregates.names import Names

_NOW = datetime(2026, 11, 1, tzinfo=UTC)
_NOBODY = cast("Any", None)  # no question goes to the database: the key is known


async def test_several_measures_of_a_key_warn_once() -> None:
    types = [
        TypeSeen("float", "", 9, _NOW, _NOW, ()),
        TypeSeen("float", "not_float", 1, _NOW, _NOW, ()),
    ]
    names = Names([1], "refuse", {"temperature": KeySeen(1, "temperature", tuple(types))})
    for number in range(3):
        await names.operand(
            _NOBODY, Name("temperature", None, f"measures[{number}].of"), ["number"]
        )
    [warning] = names.warnings
    assert "also sent 1 time as string" in warning
