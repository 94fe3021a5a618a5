"""Arithmetic, digit for digit as Postgres 15 to 18 answers it (`select a op b`), and its bounds."""

from decimal import Decimal

import pytest

from inference_store.inference.errors import InvalidFilter
from inference_store.query.filters.arithmetic import calculate
from inference_store.query.filters.typed import Calculation
from tests.unit.query.filters.evaluation import check_filter, evaluate_filter

_NINES = "9" * 30


def test_results() -> None:
    cases: list[tuple[str, Calculation, str, str | None]] = [
        ("0.1", "+", "0.2", "0.3"),
        ("1e400", "+", "1e-400", "1" + "0" * 400 + "." + "0" * 399 + "1"),
        ("5", "-", "7.50", "-2.50"),
        (_NINES, "*", _NINES, str(int(_NINES) ** 2)),
        ("1", "/", "3", "0.33333333333333333333"),
        ("-2", "/", "3", "-0.66666666666666666667"),
        ("10", "/", "4", "2.5000000000000000"),
        ("4", "/", "4", "1.00000000000000000000"),
        ("9999", "/", "3", "3333.0000000000000000"),
        ("10000", "/", "9999", "1.0001000100010001"),
        ("3", "/", "10000", "0.00030000000000000000"),
        ("1e20", "/", "3", "33333333333333333333"),
        ("1e20", "/", "3.0", "33333333333333333333.3"),
        # half away from zero
        ("100000000000000000001", "/", "2", "50000000000000000001"),
        ("-100000000000000000001", "/", "2", "-50000000000000000001"),
        ("0.5", "/", "1e5", "0.000005000000000000000000"),
        ("0", "/", "7", "0.00000000000000000000"),
        ("1e-700", "/", "1e700", "0." + "0" * 1000),
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
        # there is none
        ("1", "/", "0.00", None),
        ("1", "div", "0.00", None),
        ("1", "%", "0.00", None),
    ]
    for first, op, second, result in cases:
        value = calculate(op, Decimal(first), Decimal(second))
        assert (value if value is None else f"{value:f}") == result, (first, op, second)


def test_a_power_of_any_exponent() -> None:
    cases: list[tuple[str, str, str | None]] = [
        ("9", "0.5", "3"),
        ("2", "-1", "0.5"),
        ("-2", "3", "-8"),
        ("-2", "-3", "-0.125"),
        ("2", "20", "1048576"),
        ("0", "0", "1"),
        ("0", "2.5", "0"),
        ("10", "-3", "0.001"),
        ("1e-400", "0", "1"),
        ("-9", "0.5", None),
        ("0", "-1", None),
        # the bounds of the result, of the base and of the exponent: each, and one more
        ("10", "299", "1E+299"),
        ("10", "300", None),
        ("10", "-299", "1E-299"),
        ("10", "-300", None),
        ("1e300", "0.5", "1E+150"),
        ("1e301", "0.5", None),
        ("1e-300", "0.5", "1E-150"),
        ("1e-301", "0.5", None),
        ("1", "1000000000", "1"),
        ("1", "1000000001", None),
        ("2", "1e-300", "1"),
        ("2", "1e-301", None),
        ("1" + "0" * 299 + "1", "0.5", None),
    ]
    for base, exponent, expected in cases:
        power = calculate("power", Decimal(base), Decimal(exponent))
        case = (base, exponent)
        assert power == (None if expected is None else Decimal(expected)), case


def test_filters_that_calculate() -> None:
    cases: list[tuple[str, dict[str, object], bool | None]] = [
        ("frame_number ^ 2 = 15241578753238836750190521", {"frame_number": 3904046971190}, False),
        ("frame_number ^ 2 = 12345678987654321", {"frame_number": 111111111}, True),
        ("frame_number ^ 3 = 1371742041152263374409999", {"frame_number": 111111110}, False),
        # up to 16,000 digits a power is exact, and up to an exponent of 16
        (f"frame_number ^ 11 = {1001**11}", {"frame_number": 1001}, True),
        (f"frame_number ^ 12 = {1001**12}", {"frame_number": 1001}, False),
        (f"inference.width ^ 16 = {641**16}", {}, True),
        (f"inference.width ^ 17 = {641**17}", {}, False),
        ("frame_number ^ 17 = 131072", {"frame_number": 2}, True),
        ("frame_number ^ 0.5 = 3", {"frame_number": 9}, True),
        ("frame_number ^ speed = 8", {"frame_number": 2, "speed": 3}, True),
        ("frame_number ^ speed = 8", {"frame_number": 2}, None),
        ("speed ^ frame_number = 8", {"frame_number": 2}, None),
        ("frame_number ^ 0.5 > 0", {"frame_number": -1}, None),
        ("frame_number + 0 ^ -1 = 1", {"frame_number": 1}, None),
        ("2 ^ -1 = 0.5", {}, True),
        # of the standard's own tests of the class
        ("frame_number >= 1038290 - 2 * 2 ^ 0", {"frame_number": 1038288}, True),
        ("frame_number > 1038290 - 21 div 10", {"frame_number": 1038288}, False),
        ("1038280 + 8 = frame_number", {"frame_number": 1038288}, True),
        ("frame_number NOT BETWEEN 4000000/4 AND (3*(9+1))", {"frame_number": 1}, True),
        ("frame_number IN (3*1000+8, 30*100+9)", {"frame_number": 3009}, True),
    ]
    for text, metadata, expected in cases:
        assert evaluate_filter(text, metadata, width=641) is expected, text


def test_a_product_has_at_most_16_000_digits_after_the_point() -> None:
    assert check_filter(" * ".join(["frame_number"] * 11) + " = 1")
    with pytest.raises(InvalidFilter, match="more digits than can be calculated exactly"):
        check_filter(" * ".join(["frame_number"] * 12) + " = 1")


def test_numbers_are_compared_by_value_and_texts_by_their_digits() -> None:
    long = "9" * 1000
    cases: list[tuple[str, object, bool | None]] = [
        ('"tags[]" = 1000', ["1e3"], True),
        ("\"tags[]\" = '1000'", ["1e3"], False),
        ("\"tags[]\" = '1e3'", ["1e3"], True),
        ('"tags[]" = 1000', ["1000.00"], True),
        ("\"tags[]\" = '1000'", ["1000.00"], False),
        ("frame_number = 1.500", ("float", "1.5"), True),
        ("frame_number = 1.5", ("float", "1.500"), True),
        (f"frame_number = {long}", ("int", long), True),
        (f"frame_number = {long}", ("int", f"{long}9"), None),
        ("frame_number = 1e400", ("float", "1e400"), True),
        ("frame_number = 1e400", ("float", "1" + "0" * 400), True),
        ("frame_number = 1e400", ("float", "1e401"), None),
        ("frame_number = 1e-400", ("float", "1e-400"), True),
        ("frame_number = 1e-400", ("float", "1e-401"), None),
    ]
    for text, value, expected in cases:
        key = "tags" if "tags" in text else "frame_number"
        assert evaluate_filter(text, {key: value}) is expected, (text[:40], str(value)[:40])
