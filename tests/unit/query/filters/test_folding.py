"""Case and accents."""

import pytest

from inference_store.query.filters.folding import without_accents, without_case


@pytest.mark.parametrize(
    ("first", "second"),
    [("STRASSE", "Straße"), ("ΣΊΣΥΦΟΣ", "σίσυφος"), ("ﬁn", "FIN"), ("İ", "i̇"), ("ǅ", "ǆ")],
)
def test_full_case_folding(first: str, second: str) -> None:
    assert first != second
    assert without_case(first) == without_case(second)
    assert without_case(without_case(first)) == without_case(first)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Chișinău", "Chisinau"),
        ("Ä\u0301é", "Ae"),
        ("Ø", "Ø"),  # a letter of its own, not a mark on one
        ("が", "か"),
        ("한", "한"),
        ("plain", "plain"),
        ("\u0301", ""),
    ],
)
def test_accents(text: str, plain: str) -> None:
    assert without_accents(text) == plain
