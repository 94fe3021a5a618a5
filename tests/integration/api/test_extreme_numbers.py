"""No aggregate, order or condition fails for a number that metadata accept; all are exact."""

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from inference_store.query.aggregates import AGGREGATES, run
from tests.integration.query.aggregates import plain
from tests.integration.stored_inferences import NewInference, at

from .conftest import Api

_SPELT = (
    *("1e400", "-1e400", "1e-400", "-1e-400", "1e309", "1.7976931348623157e308", "5e-324"),
    *("9007199254740993", "9007199254740992", "0", "-0.0", "1e-300", "1e300", "-0.5", "0.1"),
    *("0." + "123456789" * 20, "9" * 300 + "." + "1" * 300, "-" + "7" * 400),
)
_VALUES = [Decimal(text) for text in _SPELT]
_BOUNDS = "-1e400, -1e-400, 0, 1e-400, 9007199254740993, 1e309, 1e400"
_OPTIONS: dict[str, dict[str, Any]] = {
    "percentiles": {"at": (0, Decimal("33.3"), 50, 100)},
    "top": {"limit": 3},
}
_FUNCTIONS = sorted(name for name, entry in AGGREGATES.items() if "number" in entry.kinds)
_GROUPINGS = {
    "nothing": "",
    "a text": '"half"',
    "the number": '{"of": "n", "as": "by"}',
    "bins": '{"histogram": {"of": "n", "bins": 7}, "as": "by"}',
    "bounds": f'{{"histogram": {{"of": "n", "bounds": [{_BOUNDS}]}}, "as": "by"}}',
}
_FILTERS = {None: Decimal("Infinity"), "n < 1e400 AND n > -1e400": Decimal("1e400")}


@pytest.fixture(autouse=True)
async def stored(api: Api) -> None:
    halves = [("half", "string", "ab"[n % 2]) for n in range(len(_SPELT))]
    items = [[("n", "float", text), half] for text, half in zip(_SPELT, halves, strict=True)]
    await api.store(*(NewInference(str(n), at(n), item) for n, item in enumerate(items)))


async def _ask(api: Api, path: str, body: str) -> Any:
    answer = await api.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, (body, answer.text)
    return json.loads(answer.text, parse_float=Decimal, parse_int=Decimal)


def _measures() -> Iterator[str]:
    """Spell a measure of each function, and of a histogram with bounds."""
    for name in _FUNCTIONS:
        options = json.dumps(_OPTIONS.get(name, {}), default=float)[1:-1]
        yield f'{{"function": "{name}", "of": "n"{options and ", " + options}}}'
    yield f'{{"function": "histogram", "of": "n", "bounds": [{_BOUNDS}], "as": "histogram(b)"}}'


@pytest.mark.parametrize("exact_values", [100_000, 0])
async def test_aggregates_agree_with_python(
    api: Api, monkeypatch: pytest.MonkeyPatch, exact_values: int
) -> None:
    """Percentiles are exact, or from logarithmic bins."""
    monkeypatch.setattr(run, "EXACT_VALUES", exact_values)
    for (how, grouping), (filter_, within) in product(_GROUPINGS.items(), _FILTERS.items()):
        body = f'"measures": [{", ".join(_measures())}], "group_by": [{grouping}]'
        if filter_ is not None:
            body += f', "filter": "{filter_}"'
        answer = await _ask(api, "/v1/models/model/inferences/aggregate", f"{{{body}}}")
        seen = 0
        for group in answer["groups"]:
            members = [
                value
                for number, value in enumerate(_VALUES)
                if abs(value) < within and _is_in(group["key"], number, value)
            ]
            seen += len(members)
            for name, shown in group["measures"].items():
                assert _agrees(name.partition("(")[0], shown, members), (how, filter_, name, shown)
        assert seen == sum(abs(value) < within for value in _VALUES), (how, filter_)


def _is_in(key: dict[str, Any], number: int, value: Decimal) -> bool:
    if "half" in key:
        return bool(key["half"] == "ab"[number % 2])
    by = key.get("by", value)
    return _is_between(by, value) if isinstance(by, dict) else bool(by == value)


def _is_between(bounds: dict[str, Any], value: Decimal) -> bool:
    low, high = bounds["from"], bounds["to"]
    return (low is None or low <= value) and (high is None or value < high)


def _agrees(function: str, shown: Any, members: Sequence[Decimal]) -> bool:
    if function == "histogram":
        counts = [sum(_is_between(bin_, value) for value in members) for bin_ in shown["bins"]]
        beside = len(members) - sum(counts)
        is_whole: bool = shown["below"] + shown["above"] == beside
        return is_whole and counts == [bin_["count"] for bin_ in shown["bins"]]
    expected = plain.calculate(function, list(members), _OPTIONS.get(function, {"limit": 10}))
    if function == "percentiles":
        error = Decimal("0.005") if shown["approximate"] else Decimal(0)
        pairs = zip((item["value"] for item in shown["values"]), expected, strict=True)
        return all(abs(value - exact) <= abs(exact) * error for value, exact in pairs)
    if function == "top":
        counted = [(item["value"], item["count"]) for item in shown["values"]]
        return bool((counted, shown["others"]) == expected)
    if function == "distinct":
        return bool((shown["values"], shown["more"]) == expected)
    return bool(shown == expected)


async def test_pages_are_in_exact_order(api: Api) -> None:
    for sign, path in (("", "/v1/models/model/inferences/query"), ("-", "/v1/inferences/query")):
        ids: list[str] = []
        cursor: str | None = None
        while True:
            following = "" if cursor is None else f', "cursor": "{cursor}"'
            page = await _ask(api, path, f'{{"sort": "{sign}n", "limit": 4{following}}}')
            ids += [item["inference_id"] for item in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
        values = [_VALUES[int(id_)] for id_ in ids]
        assert values == sorted(_VALUES, reverse=bool(sign)), path


async def test_small_powers_are_no_zeros(api: Api) -> None:
    """Postgres' own power of a whole exponent has sixteen decimals, however small it is."""
    for text, number in (("n = 0.1 AND n ^ 20 > 0", 1), ("10 ^ -30 = 0", 0), ("n ^ -20 = 1e20", 1)):
        counted = await api.ask("/v1/models/model/inferences/count", {"filter": text})
        assert counted["count"] == number, text
