"""Oriented object detection: `{label, score, cx, cy, w, h, r}` in shares of the size."""

import math
from typing import Final

from .response_reading import Reading, Row
from .unwrap import Output, elements

_COLUMNS: Final = {"cx": "cx", "cy": "cy", "w": "w", "h": "h", "r": "angle"}
_NAMES: Final = ("label", "score", *_COLUMNS)


def read_oriented(outputs: list[Output], reading: Reading) -> None:
    """Add rows of label, score, centre, size and angle; box and area if the size is known."""
    for output in outputs:
        for element in elements(output.data, _NAMES):
            if reading.full():
                return
            if not isinstance(element, dict) or element.keys().isdisjoint(_NAMES):
                reading.unreadable += 1
                continue
            row: Row = {
                "output": output.position,
                "output_name": output.name,
                "label": reading.label(element.get("label")),
                "score": reading.number(element.get("score")),
            }
            for name, column in _COLUMNS.items():
                row[column] = reading.number(element.get(name))
            row.update(_in_pixels(row, reading))
            reading.rows.append(row)


def _in_pixels(row: Row, reading: Reading) -> Row:
    """Return the upright box around the rotated one, and the area of the rotated one, in pixels."""
    shares = [row[name] for name in ("cx", "cy", "w", "h", "angle")]
    if any(share is None for share in shares):
        reading.flag("box_incomplete")
        return {}
    if not reading.width or not reading.height:
        reading.flag("size_unknown")
        return {}
    cx, cy, w, h, angle = shares
    x, y, w, h = cx * reading.width, cy * reading.height, w * reading.width, h * reading.height
    cosine, sine = abs(math.cos(angle)), abs(math.sin(angle))
    half_w, half_h = (w * cosine + h * sine) / 2, (w * sine + h * cosine) / 2
    box = {"xmin": x - half_w, "ymin": y - half_h, "xmax": x + half_w, "ymax": y + half_h}
    return {name: reading.number(value) for name, value in (*box.items(), ("area", w * h))}
