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
_POINT = Geometry("Point", (Decimal(1), Decimal("-2.5")))
_DAY = Instant(date(2026, 1, 1))


def op(name: str, *args: Node) -> Operation:
    return Operation(name, args)


def number(text: str) -> Scalar:
    return Scalar(Decimal(text))


def check(text: str, tree: Node) -> None:
    """Check that the text is read as the tree, and that the tree's own text is, too."""
    assert parse_text(text) == tree, text
    assert parse_text(to_text(tree)) == tree, text


def test_parses_operators_by_precedence() -> None:
    one, two, three = map(number, "123")
    cases: list[tuple[str, Node]] = [
        ("a OR b AND c", op("or", A, op("and", B, C))),
        ("NOT a AND b", op("and", op("not", A), B)),
        ("NOT a = b", op("not", op("=", A, B))),
        ("NOT NOT a", op("not", op("not", A))),
        ("a AND b AND c", op("and", A, B, C)),
        ("a AND (b AND c)", op("and", A, op("and", B, C))),
        ("a OR (b OR c)", op("or", A, op("or", B, C))),
        ("a = b + c * 2", op("=", A, op("+", B, op("*", C, two)))),
        ("a = 1 - 2 - 3", op("=", A, op("-", op("-", one, two), three))),
        ("a = 1 - (2 - 3)", op("=", A, op("-", one, op("-", two, three)))),
        ("a = b / c % 2", op("=", A, op("%", op("/", B, C), two))),
        ("a = b DIV c", op("=", A, op("div", B, C))),
        ("a = -b ^ 2", op("=", A, op("^", op("*", number("-1"), B), two))),
        ("a = -3 ^ 2", op("=", A, op("^", number("-3"), two))),
        ("a = 2 * b ^ 3", op("=", A, op("*", two, op("^", B, three)))),
        ("a-1 > 0", op(">", op("-", A, one), number("0"))),
        ("a = +5", op("=", A, number("5"))),
        ("a = - 5", op("=", A, number("-5"))),
        ("a BETWEEN 1 AND 2 AND b", op("and", op("between", A, one, two), B)),
        ("a NOT BETWEEN b + 1 AND 2", op("not", op("between", A, op("+", B, one), two))),
        ("a NOT IN (1) AND b", op("and", op("not", op("in", A, Listed((one,)))), B)),
        ("a IS NOT NULL", op("not", op("isNull", A))),
        ("(a = b) IS NULL", op("isNull", op("=", A, B))),
        ("(a > 1) = TRUE", op("=", op(">", A, one), Scalar(True))),
        ("a NoT lIkE 'x'", op("not", op("like", A, Scalar("x")))),
        ("((a))", A),
        ("TRUE", Scalar(True)),
        # functions, in any case of letters
        ("s_Intersects(a, b)", op("s_intersects", A, B)),
        ("T_finishedby(a, b)", op("t_finishedBy", A, B)),
        ("sent(a)", op("sent", A)),
        ("prediction(a = 'x')", op("prediction", op("=", A, Scalar("x")))),
        ("count_predictions() > 2", op(">", op("count_predictions"), two)),
        ("distance(a, POINT(1 -2.5)) < 3", op("<", op("distance", A, _POINT), three)),
        # an interval may be open, and may have names
        ("T_DURING(a, INTERVAL(b, '..'))", op("t_during", A, Interval(B, None))),
        ("T_DURING(a, INTERVAL('2026-01-01', '..'))", op("t_during", A, Interval(_DAY, None))),
        # an array function takes brackets for an array
        ("A_EQUALS(a, ())", op("a_equals", A, Listed(()))),
        ("A_EQUALS(a, ('x'))", op("a_equals", A, Listed((Scalar("x"),)))),
        ("A_EQUALS(a, ('x', 1))", op("a_equals", A, Listed((Scalar("x"), one)))),
        ("A_EQUALS(a, (('x')))", op("a_equals", A, Listed((Listed((Scalar("x"),)),)))),
        ("S_WITHIN(a, POINT (1 -2.5))", op("s_within", A, _POINT)),
        ("S_WITHIN(a, point(+1 - 2.5))", op("s_within", A, _POINT)),
    ]
    for text, tree in cases:
        check(text, tree)


def test_a_number_is_exact() -> None:
    long = "9" * 1000
    for written, value in [
        ("12345678901234567890", "12345678901234567890"),
        ("-12345678901234567890123456789012345", "-12345678901234567890123456789012345"),
        ("0.1", "0.1"),
        ("0.1000000000000000055511151231257827", "0.1000000000000000055511151231257827"),
        ("1.", "1"),
        (".5", "0.5"),
        ("1e3", "1000"),
        ("1000.00", "1000"),
        ("2.5E-3", "0.0025"),
        # the caps of stored numbers
        (long, long),
        ("1e400", "1" + "0" * 400),
        ("1e-400", "1e-400"),
    ]:
        check(f"a = {written}", op("=", A, number(value)))


def test_a_number_over_the_caps_of_stored_numbers_is_refused() -> None:
    for written in ("1" * 1001, "1e401", "1e-401", "1e99999999999"):
        with pytest.raises(InvalidFilter, match="a number has at most 1,000 digits"):
            parse_text(f"a = {written}")


def test_a_name() -> None:
    for name in (
        *("camera_position.angle", "eo:cloud_cover", "Οδος", "metadata.x", "date", "Point", "z"),
        *("nothing", "order"),
    ):
        check(name, Named(name))
    for written, name in [
        ('"camera-id"', "camera-id"),
        ('"tags[]"', "tags[]"),
        ('"say ""hello"""', 'say "hello"'),
        ('"and"', "and"),
        ('""', ""),
    ]:
        check(written, Named(name))


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
        check(f"a LIKE {written}", op("like", A, Scalar(value)))


def test_an_instant() -> None:
    cases: list[tuple[str, date]] = [
        ("DATE('2026-11-01')", date(2026, 11, 1)),
        ("date( '2026-11-01' )", date(2026, 11, 1)),
        ("TIMESTAMP('2026-11-01T10:00:00Z')", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        ("TIMESTAMP('2026-11-01T10:00:00.000001Z')", datetime(2026, 11, 1, 10, 0, 0, 1, UTC)),
        ("TIMESTAMP('2026-11-01T10:00:00.000001999Z')", datetime(2026, 11, 1, 10, 0, 0, 1, UTC)),
        ("TIMESTAMP('2026-11-01T10:00:00+02:00')", datetime(2026, 11, 1, 8, tzinfo=UTC)),
    ]
    for written, value in cases:
        check(f"a > {written}", op(">", A, Instant(value)))


def test_rejects_malformed_instants(subtests: pytest.Subtests) -> None:
    for written in [
        "DATE('2026-11-31')", "DATE('1.11.2026')", "DATE('0000-01-01')", "TIMESTAMP('2026-11-01')",
        "TIMESTAMP('2026-11-01T10:00:00')", "TIMESTAMP('2026-11-01T25:00:00Z')",
        "TIMESTAMP('2026-11-01T24:00:00Z')",
        "TIMESTAMP('0001-01-01T00:00:00+01:00')", "TIMESTAMP('2026-11-01T23:59:60Z')",
        "DATE('２０２６-11-01')",
    ]:  # fmt: skip
        with subtests.test(written), pytest.raises(InvalidFilter):
            parse_text(f"a > {written}")


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


def test_places_are_characters_of_the_text() -> None:
    text = "a = 1 AND\n  (camera > 'x')"
    tree = parse_text(text, path="rules[0].filter")
    assert isinstance(tree, Operation)
    second = tree.args[1]
    assert isinstance(second, Operation)
    assert text[second.at.start : second.at.end] == "camera > 'x'"
    assert second.at.path == "rules[0].filter"
    assert text[second.args[0].at.start : second.args[0].at.end] == "camera"
