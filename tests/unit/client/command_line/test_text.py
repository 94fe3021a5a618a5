"""Text from outside cannot steer a terminal, and a table fits into it."""

from typing import Any

import pytest

from inference_store_client.command_line.rows import pick, shape, write_line
from inference_store_client.command_line.table import Table
from inference_store_client.command_line.text import make_printable, measure, shorten


def test_what_would_steer_a_terminal_is_escaped() -> None:
    for text, shown in [
        ("plain", "plain"),
        ("über 東京", "über 東京"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x00", "\\x00"),
    ]:
        assert make_printable(text) == shown, text


def test_a_text_is_cut_to_its_columns() -> None:
    for text, width, shown in [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abcde…"),
        ("東京都庁", 6, "東京…"),
        ("東京", 4, "東京"),
    ]:
        assert shorten(text, width) == shown, text
        assert measure(shown) <= width, text


def make_entry(key: str, type_name: str, value: str | None) -> dict[str, Any]:
    return {"key": key, "type": type_name, "value": value, "section": "extended", "flags": []}


_ITEM = {
    "inference_id": "frame-1",
    "received_at": "2026-11-01T00:00:00.123456Z",
    "ok": True,
    "top_score": 0.1,
    "metadata": [
        make_entry("n", "int", "123456789012345678901234567890"),
        make_entry("price", "float", "0.10"),
        make_entry("a.b", "string", "dots"),
        make_entry("camera", "json", '{"angle": 12.750, "tags": ["x", "y"]}'),
        make_entry("at", "timestamp", "2026-11-01T06:00:00+02:00"),
        make_entry("bad", "int", "n/a"),
    ],
    "predictions": [{"label": "person", "score": 0.9}, {"label": "car", "score": None}],
    "cursor": "c",
}


def test_a_line_has_exact_numbers_and_metadata_by_key() -> None:
    line = write_line(shape(_ITEM, ["inference_id", "metadata", "metadata.n", "top_score"]))
    assert line == (
        '{"inference_id": "frame-1", "metadata": {"n": 123456789012345678901234567890,'
        ' "price": 0.10, "a.b": "dots", "camera": {"angle": 12.750, "tags": ["x", "y"]},'
        ' "at": "2026-11-01T06:00:00+02:00", "bad": "n/a"}, "top_score": 0.1}'
    )
    assert "cursor" not in shape(_ITEM, None)


def test_a_line_has_the_metadata_that_is_named_alone() -> None:
    cases: list[tuple[list[str], str]] = [
        (["n"], '{"n": 123456789012345678901234567890}'),
        (["camera.angle", "bad"], '{"camera": {"angle": 12.750}, "bad": "n/a"}'),
        (["camera.tags[]"], '{"camera": {"tags": ["x", "y"]}}'),
        (["camera.angle", "camera"], '{"camera": {"angle": 12.750, "tags": ["x", "y"]}}'),
        (["a.b", "camera.angle.x", "missing", "missing.too"], '{"a.b": "dots"}'),
    ]
    for names, metadata in cases:
        line = write_line(shape(_ITEM, [f"metadata.{name}" for name in names]))
        assert line == f'{{"metadata": {metadata}}}', names


def test_a_cell() -> None:
    for column, cell in [
        ("inference_id", "frame-1"),
        ("received_at", "2026-11-01T00:00:00Z"),
        ("ok", "true"),
        ("top_label", ""),
        ("metadata.n", "123456789012345678901234567890"),
        ("metadata.price", "0.10"),
        ("metadata.a.b", "dots"),
        ("metadata.camera.angle", "12.750"),
        ("metadata.camera.tags[]", "x, y"),
        ("metadata.missing", ""),
        ("metadata.camera.missing", ""),
        ("predictions.label", "person, car"),
        ("predictions.score", "0.9, "),
    ]:
        assert pick(shape(_ITEM, [column]), column) == cell, column


def test_a_lone_surrogate_is_escaped() -> None:
    assert write_line("a\ud800ü") == '"a\\ud800\\u00fc"'
    assert write_line("ü") == '"ü"'


def test_a_table_fits_into_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"inference_id": "f" * 50, "error": "the model\ntimed out " * 9, "ok": False}] * 2
    for terminal in (40, 200):
        monkeypatch.setenv("COLUMNS", str(terminal))
        table = Table.fit(["inference_id", "error", "ok"], items)
        lines = [table.format_head(), *map(table.format_row, items)]
        assert max(map(len, lines)) <= terminal
        assert lines[0].split() == ["inference_id", "error", "ok"]
        assert lines[1].endswith("false")
        assert ("…" in lines[1].split()[0]) is (terminal == 40)
