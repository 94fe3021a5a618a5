"""Tabular models: the values of each output, as exact numbers or as labels."""

from typing import Final

from inference_store.inference.json_text import Json

from .classification import read_classes
from .response_reading import Reading, Row, is_numeric
from .unwrap import Output, elements, is_tensor, seems_json

_SCORED: Final = ("label", "score")


def read_tabular(outputs: list[Output], reading: Reading) -> None:
    """Add rows of value or label per output name; scores if the mapping names class
    probabilities."""
    mapping = reading.mapping
    for output in outputs:
        if (
            mapping is not None
            and output.name is not None
            and output.name == mapping.class_probabilities
            and is_tensor(output.data)
        ):
            read_classes(output, reading)
        else:
            _values(output, reading)


def _values(output: Output, reading: Reading) -> None:
    for element in elements(output.data, ()):
        if reading.full():
            return
        if isinstance(element, dict) and not element.keys().isdisjoint(_SCORED):
            row = _row(output, output.name, reading)
            row["label"] = reading.label(element.get("label"))
            row["score"] = reading.number(element.get("score"))
            reading.rows.append(row)
        elif isinstance(element, dict):
            _named_values(output, element, reading)
        else:
            _value(output, output.name, element, reading)


def _named_values(output: Output, element: dict[str, Json], reading: Reading) -> None:
    """Add rows of `{"price": 12.5, "grade": "B"}`: each name is an output."""
    for name, value in element.items():
        if reading.full():
            return
        _value(output, name, value, reading)


def _value(output: Output, name: str | None, value: Json, reading: Reading) -> None:
    row = _row(output, name, reading)
    if is_numeric(value):
        row["value"] = reading.decimal(value)
        if reading.mapping is not None and name is not None and name == reading.mapping.labels:
            row["label"] = reading.label(value)
    elif value is None or isinstance(value, (dict, list)) or _is_broken(value):
        reading.unreadable += 1
        return
    else:
        row["label"] = reading.label(value)
    reading.rows.append(row)


def _is_broken(value: Json) -> bool:
    return type(value) is str and seems_json(value)


def _row(output: Output, name: str | None, reading: Reading) -> Row:
    return {"output": output.position, "output_name": reading.short(name)}
