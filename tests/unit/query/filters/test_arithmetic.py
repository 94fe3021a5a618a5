"""Arithmetic, digit for digit as Postgres 15 to 18 answers it (`select a op b`)."""

from decimal import Decimal

import pytest

from inference_store.query.filters.arithmetic import calculate
from inference_store.query.filters.typed import Calculation

_NINES = "9" * 30


@pytest.mark.parametrize(
    ("first", "op", "second", "result"),
    [
        ("0.1", "+", "0.2", "0.3"),
        ("1e400", "+", "1e-400", "1" + "0" * 400 + "." + "0" * 399 + "1"),
        ("5", "-", "7.50", "-2.50"),
        (_NINES, "*", _NINES, str(int(_NINES) ** 2)),
        ("1", "/", "3", "0.33333333333333333333"),
        ("2", "/", "3", "0.66666666666666666667"),
        ("-2", "/", "3", "-0.66666666666666666667"),
        ("10", "/", "4", "2.5000000000000000"),
        ("4", "/", "4", "1.00000000000000000000"),
        ("1e20", "/", "3", "33333333333333333333"),
        ("1e20", "/", "3.0", "33333333333333333333.3"),
        ("0.5", "/", "1e5", "0.000005000000000000000000"),
        ("0", "/", "7", "0.00000000000000000000"),
        ("7", "div", "2", "3"),
        ("-7", "div", "2", "-3"),
        ("7.9", "div", "-0.5", "-15"),
        ("7", "%", "3", "1"),
        ("-7", "%", "3", "-1"),
        ("7", "%", "-3", "1"),
        ("7.25", "%", "0.5", "0.25"),
        ("1.5", "^", "3", "3.375"),
        ("0", "^", "0", "1"),
        ("-2", "^", "15", "-32768"),
    ],
)
def test_results(first: str, op: Calculation, second: str, result: str) -> None:
    value = calculate(op, Decimal(first), Decimal(second))
    assert value is not None
    assert f"{value:f}" == result


@pytest.mark.parametrize("op", ["/", "div", "%"])
def test_a_division_by_zero_has_no_result(op: Calculation) -> None:
    assert calculate(op, Decimal(1), Decimal("0.00")) is None
