"""Compare what a query answered as lines with parts of exports: compare_exports.py LINES PART…

It knows the formats from their documentation alone. Prints, as JSON, by the name of the part: its
rows, how many metadata it compared, how many of them are in `metadata_rest`, and what differs.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow.ipc
import pyarrow.parquet
import webdataset

Row = dict[str, Any]
_MOST_DIFFERENCES: Final = 20
_TIME: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)"
)
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_BOOLS: Final = {"true": True, "1": True, "false": False, "0": False}
_LINES: Final = {".jsonl", ".tar"}
_SPECIAL: Final = {"metadata", "predictions", "cursor", "urls"}


def read_lines(path: Path) -> list[Row]:
    """Return the objects of a file of JSON lines, with every digit of a number."""
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line, parse_float=Decimal) for line in lines if line]


def read_csv(path: Path) -> list[Row]:
    """Return the rows of RFC 4180; a field without quotes that is empty is null."""
    rows = [*split_csv(path.read_bytes().decode())]
    names = [str(name) for name in rows[0]]
    return [dict(zip(names, row, strict=True)) for row in rows[1:]]


def split_csv(text: str) -> Iterator[list[str | None]]:
    """Yield the fields of each record."""
    row: list[str | None] = []
    at = 0
    while at < len(text):
        if text[at] == '"':
            end = at + 1
            while text[end] != '"' or text[end : end + 2] == '""':
                end += 2 if text[end] == '"' else 1
            row.append(text[at + 1 : end].replace('""', '"'))
            end += 1
        else:
            end = min(i for i in (text.find(",", at), text.find("\r\n", at)) if i >= 0)
            row.append(text[at:end] or None)
        if text[end] == ",":
            at = end + 1
            continue
        assert text[end : end + 2] == "\r\n", text[end : end + 9]
        yield row
        row, at = [], end + 2


def read_arrow(path: Path) -> list[Row]:
    return list(pyarrow.ipc.open_stream(path).read_all().to_pylist())


def read_parquet(path: Path) -> list[Row]:
    return list(pyarrow.parquet.read_table(path).to_pylist())


def read_tar(path: Path) -> list[Row]:
    """Return the objects of a WebDataset, with every digit of a number."""
    samples = webdataset.WebDataset(str(path), shardshuffle=False)
    return [json.loads(sample["json"], parse_float=Decimal) for sample in samples]


READERS: Final[dict[str, Callable[[Path], list[Row]]]] = {
    ".jsonl": read_lines,
    ".csv": read_csv,
    ".arrows": read_arrow,
    ".parquet": read_parquet,
    ".tar": read_tar,
}


def is_text_equal(text: str, shown: Any) -> bool:
    """Check a value of a column against the text of JSON's value."""
    if isinstance(shown, bool):
        return _BOOLS.get(text.lower()) is shown
    if isinstance(shown, int):
        return re.fullmatch(r"[+-]?\d+", text.strip()) is not None and int(text) == shown
    if isinstance(shown, float):
        return Decimal(text) == Decimal(repr(shown))
    if isinstance(shown, datetime):
        return read_time(text) == shown
    return bool(text == shown)


def read_time(text: str) -> datetime | None:
    """Return the time with its microseconds, of a day its begin; None: it is finer, or no time that
    there is."""
    text = f"{text}T00:00:00Z" if _DATE.fullmatch(text) else text
    match = _TIME.fullmatch(text)
    if match is None or len((match[7] or "").rstrip("0")) > 6:
        return None
    offset = timedelta()
    if match[8] != "Z":
        offset = timedelta(hours=int(match[8][1:3]), minutes=int(match[8][4:]))
        offset = -offset if match[8][0] == "-" else offset
    try:
        numbers = [int(match[n]) for n in range(1, 7)]
        microseconds = int((match[7] or "0")[:6].ljust(6, "0"))
        return datetime(*numbers, microseconds, tzinfo=UTC) - offset  # type: ignore[arg-type,misc]
    except (ValueError, OverflowError):
        return None


def is_csv_equal(item: Row, text: str) -> bool:
    """Check a field of CSV, which has no types but that of the metadata itself."""
    kind, value = item["type"], item["value"]
    if value == text:
        return True
    if kind in {"int", "float"}:
        return Decimal(value) == Decimal(text)
    if kind == "bool":
        return text in {"true", "false"} and _BOOLS.get(value.lower()) is (text == "true")
    return kind == "timestamp" and read_time(value) == read_time(text) is not None


def compare_metadata(line: Row, row: Row, differ: Callable[[str], None]) -> tuple[int, int]:
    """Check that each value is in its column or in the rest, and that neither has another."""
    rest = Counter(map(make_key, json.loads(row["metadata_rest"] or "[]")))
    in_rest = rest.total()
    columns = {
        name: value
        for name, value in row.items()
        if name.startswith("metadata.") and value is not None
    }
    seen: set[str] = set()
    for item in line["metadata"]:
        names = [f"metadata.{item['key']}", f"metadata.{item['key']}:{item['type'] or 'string'}"]
        names = [name for name in names if name in columns]
        if rest[make_key(item)]:
            rest[make_key(item)] -= 1
            seen.update(name for name in names if is_near(item, columns[name]))
        elif not any(name not in seen and is_held(item, columns[name]) for name in names):
            differ(f"{item} is nowhere: {[columns[name] for name in names]}")
        else:
            seen.update(name for name in names if is_held(item, columns[name]))
    for name in columns.keys() - seen:
        differ(f"{name} has {columns[name]!r}, which did not come")
    for key in +rest:
        differ(f"the rest has {key}, which did not come")
    return len(line["metadata"]), in_rest


def make_key(item: Row) -> tuple[Any, ...]:
    return (item["key"], item["type"], item["value"])


def is_held(item: Row, value: Any) -> bool:
    if isinstance(value, str):
        return is_csv_equal(item, value)
    return is_text_equal(item["value"], value)


def is_near(item: Row, value: Any) -> bool:
    """Check whether a column has the nearest double, or the time without its finer part."""
    text = item["value"]
    if text is None:
        return False
    if item["type"] == "float":
        try:
            return float(text) == float(value)
        except ValueError:  # the column has another value of a key that came twice
            return False
    if item["type"] == "timestamp":
        cut = re.sub(r"(\.\d{6})\d+", r"\1", text)
        return read_time(cut) == (read_time(value) if isinstance(value, str) else value)
    return False


def compare_plain(left: Any, right: Any, *, is_csv: bool) -> bool:
    """Check a field of an inference: JSON's value, and that of a column."""
    if left is None or right is None:
        return left is right
    if isinstance(right, datetime):
        return read_time(left) == right
    if isinstance(right, float):
        return Decimal(repr(right)) == Decimal(left)
    if not is_csv or isinstance(left, str):
        return bool(left == right) or (is_csv and read_time(left) == read_time(right) is not None)
    return bool(json.loads(right, parse_float=Decimal) == left)


def compare_predictions(line: Row, row: Row, *, is_csv: bool) -> bool:
    """Check the predictions: a member that is null may be left out."""
    shown = row["predictions"]
    if is_csv and shown is not None:
        shown = json.loads(shown, parse_float=Decimal)
    expected = line["predictions"]
    if expected is None or shown is None:
        return expected is shown
    return [strip(each) for each in expected] == [strip(each) for each in shown]


def strip(value: Any) -> Any:
    """Leave nulls out, and read doubles by their shortest digits."""
    if isinstance(value, dict):
        return {name: strip(member) for name, member in value.items() if member is not None}
    if isinstance(value, list):
        return [strip(member) for member in value]
    return Decimal(repr(value)) if isinstance(value, float) else value


def compare(lines: list[Row], path: Path) -> Row:
    rows = READERS[path.suffix](path)
    differences: list[str] = []
    if [line["uid"] for line in lines] != [row["uid"] for row in rows]:
        differences.append(f"{len(lines)} lines, {len(rows)} rows, or other uids")
    compared = rest = 0
    for line, row in zip(lines, rows, strict=False):

        def differ(what: str, line: Row = line) -> None:
            differences.append(f"{line['inference_id']}: {what}")

        plain = {name: value for name, value in line.items() if name not in _SPECIAL}
        if path.suffix in _LINES:
            for name in {*plain, "metadata", "predictions"}:
                if line[name] != row.get(name, "missing"):
                    differ(f"{name}: {line[name]!r} {row.get(name, 'missing')!r}")
            compared += len(row["metadata"])
            continue
        for name, value in plain.items():
            if not compare_plain(value, row[name], is_csv=path.suffix == ".csv"):
                differ(f"{name}: {value!r} {row[name]!r}")
        if not compare_predictions(line, row, is_csv=path.suffix == ".csv"):
            differ(f"predictions: {line['predictions']} {row['predictions']}")
        numbers = compare_metadata(line, row, differ)
        compared, rest = compared + numbers[0], rest + numbers[1]
    return {
        "rows": len(rows),
        "metadata": compared,
        "rest": rest,
        "different": len(differences),
        "differences": differences[:_MOST_DIFFERENCES],
    }


def main() -> None:
    asked, *parts = map(Path, sys.argv[1:])
    lines = [line for line in read_lines(asked) if "uid" in line]
    print(json.dumps({path.suffix: compare(lines, path) for path in parts}))


if __name__ == "__main__":
    main()
