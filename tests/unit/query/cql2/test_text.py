"""The meaning of the text: precedence, exact numbers, names, escapes, times, geometries."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from inference_store.inference.errors import InvalidFilter
from inference_store.query.cql2 import parse_text, to_text
from inference_store.query.cql2.tree import (
    Geometry,
    Instant,
    Interval,
    Listed,
    Named,
    Node,
    Operation,
    Scalar,
)

A, B, C = Named("a"), Named("b"), Named("c")


def op(name: str, *args: Node) -> Operation:
    return Operation(name, args)


def number(text: str) -> Scalar:
    return Scalar(Decimal(text))


def test_parses_operators_by_precedence() -> None:
    cases: list[tuple[str, Node]] = [
        ("a OR b AND c", op("or", A, op("and", B, C))),
        ("NOT a AND b", op("and", op("not", A), B)),
        ("NOT a = b", op("not", op("=", A, B))),
        ("NOT NOT a", op("not", op("not", A))),
        ("a AND b AND c", op("and", A, B, C)),
        ("a AND (b AND c)", op("and", A, op("and", B, C))),
        ("a OR (b OR c)", op("or", A, op("or", B, C))),
        ("a = b + c * 2", op("=", A, op("+", B, op("*", C, number("2"))))),
        ("a = 1 - 2 - 3", op("=", A, op("-", op("-", number("1"), number("2")), number("3")))),
        ("a = 1 - (2 - 3)", op("=", A, op("-", number("1"), op("-", number("2"), number("3"))))),
        ("a = b / c % 2", op("=", A, op("%", op("/", B, C), number("2")))),
        ("a = b DIV c", op("=", A, op("div", B, C))),
        ("a = -b ^ 2", op("=", A, op("^", op("*", number("-1"), B), number("2")))),
        ("a = -3 ^ 2", op("=", A, op("^", number("-3"), number("2")))),
        ("a = 2 * b ^ 3", op("=", A, op("*", number("2"), op("^", B, number("3"))))),
        ("a-1 > 0", op(">", op("-", A, number("1")), number("0"))),
        ("a = +5", op("=", A, number("5"))),
        ("a = - 5", op("=", A, number("-5"))),
        ("a BETWEEN 1 AND 2 AND b", op("and", op("between", A, number("1"), number("2")), B)),
        (
            "a NOT BETWEEN b + 1 AND 2 OR c",
            op("or", op("not", op("between", A, op("+", B, number("1")), number("2"))), C),
        ),
        ("a NOT IN (1) AND b", op("and", op("not", op("in", A, Listed((number("1"),)))), B)),
        ("a IS NOT NULL", op("not", op("isNull", A))),
        ("(a = b) IS NULL", op("isNull", op("=", A, B))),
        ("(a > 1) = TRUE", op("=", op(">", A, number("1")), Scalar(True))),
        ("a NoT lIkE 'x'", op("not", op("like", A, Scalar("x")))),
        ("((a))", A),
        ("TRUE", Scalar(True)),
    ]
    for text, tree in cases:
        assert parse_text(text) == tree, text
        assert parse_text(to_text(tree)) == tree, text


def test_a_number_is_exact() -> None:
    for written, value in [
        ("12345678901234567890", "12345678901234567890"),
        ("-12345678901234567890123456789012345", "-12345678901234567890123456789012345"),
        ("0.1", "0.1"),
        ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
        ("1.", "1"),
        (".5", "0.5"),
        ("1e3", "1000"),
        ("2.5E-3", "0.0025"),
    ]:
        tree = parse_text(f"a = {written}")
        assert tree == op("=", A, number(value)), written
        assert parse_text(to_text(tree)) == tree, written


def test_a_number_over_the_caps_of_stored_numbers_is_refused() -> None:
    for written in ("1" * 1001, "1e401", "1e-401", "1e99999999999"):
        with pytest.raises(InvalidFilter, match="a number has at most 1,000 digits"):
            parse_text(f"a = {written}")


def test_a_name() -> None:
    for written, name in [
        ("camera_position.angle", "camera_position.angle"),
        ("eo:cloud_cover", "eo:cloud_cover"),
        ("Οδος", "Οδος"),
        ("metadata.x", "metadata.x"),
        ('"camera-id"', "camera-id"),
        ('"tags[]"', "tags[]"),
        ('"say ""hello"""', 'say "hello"'),
        ('"and"', "and"),
        ("date", "date"),
        ("Point", "Point"),
        ("z", "z"),
        ("nothing", "nothing"),
        ("order", "order"),
        ('""', ""),
    ]:
        tree = parse_text(f"{written} = 1")
        assert tree == op("=", Named(name), number("1")), written
        assert parse_text(to_text(tree)) == tree, written


def test_quoted_and_bare_names_are_equal() -> None:
    bare, quoted = parse_text("a"), parse_text('"a"')
    assert isinstance(bare, Named)
    assert isinstance(quoted, Named)
    assert (bare.quoted, quoted.quoted) == (False, True)
    assert bare == quoted
    assert (to_text(bare), to_text(quoted)) == ("a", '"a"')


def test_a_text() -> None:
    for written, value in [
        ("'Via dell''Avvento'", "Via dell'Avvento"),
        (r"'Via dell\'Avvento'", "Via dell'Avvento"),
        (r"'a\tb\nc'", "a\tb\nc"),
        (r"'\a\b\v\f\r'", "\a\b\v\f\r"),
        (r"'50\%'", r"50\%"),
        (r"'50\\%'", r"50\%"),
        (r"'a\\nb'", r"a\nb"),
        (r"'\\\\'", "\\\\"),
        ("'line\nline'", "line\nline"),
        ("''", ""),
        ("''''", "'"),
        ("'😀'", "😀"),
    ]:
        tree = parse_text(f"a LIKE {written}")
        assert tree == op("like", A, Scalar(value)), written
        assert parse_text(to_text(tree)) == tree, written


def test_an_instant() -> None:
    cases: list[tuple[str, date]] = [
        ("DATE('2026-11-01')", date(2026, 11, 1)),
        ("date( '2026-11-01' )", date(2026, 11, 1)),
        ("TIMESTAMP('2026-11-01T10:00:00Z')", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        ("TIMESTAMP('2026-11-01T10:00:00.000001Z')", datetime(2026, 11, 1, 10, 0, 0, 1, UTC)),
        ("TIMESTAMP('2026-11-01T10:00:00+02:00')", datetime(2026, 11, 1, 8, tzinfo=UTC)),
    ]
    for written, value in cases:
        tree = parse_text(f"a > {written}")
        assert tree == op(">", A, Instant(value)), written
        assert parse_text(to_text(tree)) == tree, written


def test_rejects_malformed_instants(subtests: pytest.Subtests) -> None:
    for written in [
        "DATE('2026-11-31')", "DATE('1.11.2026')", "DATE('0000-01-01')", "TIMESTAMP('2026-11-01')",
        "TIMESTAMP('2026-11-01T10:00:00')", "TIMESTAMP('2026-11-01T25:00:00Z')",
        "TIMESTAMP('2026-11-01T24:00:00Z')",
        "TIMESTAMP('2026-11-01T10:00:00.0000001Z')", "TIMESTAMP('0001-01-01T00:00:00+01:00')",
        "DATE('２０２６-11-01')",
    ]:  # fmt: skip
        with subtests.test(written), pytest.raises(InvalidFilter):
            parse_text(f"a > {written}")


def test_an_interval_may_be_open_and_may_have_names() -> None:
    tree = parse_text("T_DURING(a, INTERVAL(b, '..'))")
    assert tree == op("t_during", A, Interval(B, None))
    day = Instant(date(2026, 1, 1))
    assert parse_text("T_DURING(a, INTERVAL('2026-01-01', '..'))") == op(
        "t_during", A, Interval(day, None)
    )


def test_a_point() -> None:
    for written in ["POINT(1 -2.5)", "POINT (1 -2.5)", "point(+1 - 2.5)"]:
        point = Geometry("Point", (Decimal(1), Decimal("-2.5")))
        assert parse_text(f"S_INTERSECTS(a, {written})") == op("s_intersects", A, point), written


def test_a_point_may_have_a_height() -> None:
    tree = parse_text("S_INTERSECTS(a, POINT Z (1 2 3))")
    assert parse_text("S_INTERSECTS(a, POINT(1 2 3))") == tree
    assert to_text(tree) == "S_INTERSECTS(a, POINT Z (1 2 3))"


def test_rejects_malformed_geometries(subtests: pytest.Subtests) -> None:
    for written in [
        "POINT(1)", "POINT(1 2 3 4)", "POINT((1 2))", "POINT(1 2, 3 4)", "BBOX(1,2,3)",
        "BBOX(1,9,3,4)", "POLYGON((0 0, 1 1, 0 0))", "POLYGON((0 0, 1 0, 1 1, 2 2))",
        "POLYGON(0 0, 1 0, 1 1, 0 0)", "POLYGON((0 0, 1 0, 1 1 1, 0 0))", "POINT(a b)",
        "MULTIPOLYGON((0 0, 1 0, 1 1, 0 0))", "POINT(POINT(1 2))", "GEOMETRYCOLLECTION(1 2)",
        "GEOMETRYCOLLECTION(GEOMETRYCOLLECTION(POINT(1 2)))",
    ]:  # fmt: skip
        with subtests.test(written), pytest.raises(InvalidFilter):
            parse_text(f"S_INTERSECTS(a, {written})")


def test_an_array_function_takes_brackets_for_an_array() -> None:
    cases: list[tuple[str, tuple[Node, ...]]] = [
        ("A_EQUALS(a, ())", ()),
        ("A_EQUALS(a, ('x'))", (Scalar("x"),)),
        ("A_EQUALS(a, ('x', 1))", (Scalar("x"), number("1"))),
        ("A_EQUALS(a, (('x')))", (Listed((Scalar("x"),)),)),
    ]
    for text, items in cases:
        assert parse_text(text) == op("a_equals", A, Listed(items)), text
        assert to_text(parse_text(text)) == text, text


def test_own_functions() -> None:
    assert parse_text("prediction(label = 'x') AND count_predictions() > 2") == op(
        "and",
        op("prediction", op("=", Named("label"), Scalar("x"))),
        op(">", op("count_predictions"), number("2")),
    )
    assert parse_text("sent(a)") == op("sent", A)
    point = Geometry("Point", (Decimal(1), Decimal(2)))
    assert parse_text("distance(location, POINT(1 2)) < 5") == op(
        "<", op("distance", Named("location"), point), number("5")
    )


def test_a_function_is_found_in_any_case_of_letters() -> None:
    assert parse_text("s_Intersects(a, b) AND T_finishedby(a, b)") == op(
        "and", op("s_intersects", A, B), op("t_finishedBy", A, B)
    )


def test_places_are_characters_of_the_text() -> None:
    text = "a = 1 AND\n  (camera > 'x')"
    tree = parse_text(text, path="rules[0].filter")
    assert isinstance(tree, Operation)
    second = tree.args[1]
    assert isinstance(second, Operation)
    assert text[second.at.start : second.at.end] == "camera > 'x'"
    assert second.at.path == "rules[0].filter"
    assert text[second.args[0].at.start : second.args[0].at.end] == "camera"
