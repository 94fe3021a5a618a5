"""The filters of the docs, as expressions of the Python client: by the text that the docs have."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from inference_store_client import (
    a_contains,
    a_equals,
    accenti,
    bbox,
    casei,
    count_predictions,
    distance,
    duration,
    field,
    interval,
    meta,
    now,
    point,
    polygon,
    predicted,
    prediction,
    s_intersects,
    s_within,
    sent,
)
from inference_store_client.filters import Expression, t_before, t_during, t_intersects

_DOCS: Final = Path(__file__).parents[1] / "docs"
_FILTERS: Final = (_DOCS / "reference" / "filters.md").read_text()
_QUERY: Final = (_DOCS / "how-to" / "query.md").read_text()
_BLOCK: Final = re.compile(r"^```cql2(?: relative)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINE: Final = re.compile(r"^\| `(.+)` \| [^|]+ \|$", re.MULTILINE)
_BODY: Final = re.compile(r'^  "filter": "(.+)"$', re.MULTILINE)


def list_texts() -> Iterator[str]:
    yield from map(str.strip, _BLOCK.findall(_FILTERS + _QUERY))
    yield from map(str.strip, _LINE.findall(_QUERY))
    yield from _BODY.findall(_QUERY)


EXAMPLES: Final[Mapping[str, Expression]] = {
    "frame_number > 9000": meta.frame_number > 9000,
    "data_source = 'hallway-camera-feed' AND frame_number BETWEEN 9000 AND 9019": (
        (meta.data_source == "hallway-camera-feed") & meta.frame_number.between(9000, 9019)
    ),
    "\"camera-id\" = 'cam-3'": meta["camera-id"] == "cam-3",
    "camera_position.angle >= 10.25 AND camera_position.zoom = 2": (
        (meta["camera_position.angle"] >= 10.25) & (meta["camera_position.zoom"] == 2)
    ),
    "\"camera-id\" IN ('cam-1', 'cam-2')": meta["camera-id"].isin(["cam-1", "cam-2"]),
    "data_source LIKE 'garden%'": meta.data_source.like("garden%"),
    "CASEI(operator) IN ('ZOË', 'STRASSE')": casei(meta.operator).isin(["ZOË", "STRASSE"]),
    "ACCENTI(CASEI(operator)) = 'José'": accenti(casei(meta.operator)) == "José",
    "frame_number > frame_limit": meta.frame_number > meta.frame_limit,
    "(frame_number - 8950) / 4 = 10.5 OR frame_number % 25 = 0": (
        ((meta.frame_number - 8950) / 4 == 10.5) | (meta.frame_number % 25 == 0)
    ),
    "temperature < 0": meta.temperature < 0,
    "NOT temperature < 0": ~(meta.temperature < 0),
    "temperature IS NULL": meta.temperature.is_null(),
    "sent(reviewed) AND NOT reviewed": sent(meta.reviewed) & ~meta.reviewed,
    "\"tags[]\" = 'rain'": meta["tags[]"] == "rain",
    "\"tags[]\" <> 'night'": meta["tags[]"] != "night",
    "NOT \"tags[]\" = 'night'": ~(meta["tags[]"] == "night"),
    "A_CONTAINS(\"tags[]\", ('night', 'rain'))": a_contains(meta["tags[]"], ["night", "rain"]),
    "NOT ok": ~field.ok,
    "http_status >= 500 OR model_ms > 110": (field.http_status >= 500) | (field.model_ms > 110),
    "inference_ids IN ('frame-003', 'req/7')": field.inference_ids.isin(["frame-003", "req/7"]),
    "model_version = '1.1' AND received_at >= TIMESTAMP('2026-11-20T00:00:00Z')": (
        (field.model_version == "1.1") & (field.received_at >= datetime(2026, 11, 20, tzinfo=UTC))
    ),
    "received_at BETWEEN '2026-11-03' AND DATE('2026-11-04')": (
        field.received_at.between("2026-11-03", date(2026, 11, 4))
    ),
    "T_INTERSECTS(received_at, INTERVAL('2026-11-03T00:00:00Z', '2026-11-04T12:00:00Z'))": (
        t_intersects(
            field.received_at,
            interval(datetime(2026, 11, 3, tzinfo=UTC), datetime(2026, 11, 4, 12, tzinfo=UTC)),
        )
    ),
    "T_BEFORE(shift_start, TIMESTAMP('2026-11-05T00:00:00Z'))": (
        t_before(meta.shift_start, datetime(2026, 11, 5, tzinfo=UTC))
    ),
    "received_at > now() - duration('PT1H')": field.received_at > now() - timedelta(hours=1),
    "shift_start BETWEEN now() - duration('P2D') AND now() - duration('P1D')": (
        meta.shift_start.between(now() - timedelta(days=2), now() - duration("P1D"))
    ),
    "T_DURING(shift_start, INTERVAL(now() - duration('P2M'), now()))": (
        t_during(meta.shift_start, interval(now() - duration("P2M"), now()))
    ),
    "S_INTERSECTS(location, BBOX(-43.9, -33, -43.5, -32.5))": (
        s_intersects(field.location, bbox(-43.9, -33, -43.5, -32.5))
    ),
    "S_WITHIN(location, POLYGON((-44 -33, -43 -33, -44 -32, -44 -33)))": (
        s_within(field.location, polygon([(-44, -33), (-43, -33), (-44, -32), (-44, -33)]))
    ),
    "distance(location, POINT(-43.5 -32.5)) < 20000": (
        distance(field.location, point(-43.5, -32.5)) < 20000
    ),
    "prediction(label = 'person' AND score < 0.4)": (
        prediction(predicted.score < 0.4, label="person")
    ),
    "prediction(label = 'person') AND NOT prediction(label = 'car')": (
        prediction(label="person") & ~prediction(label="car")
    ),
    "count_predictions(label = 'person') >= 3": count_predictions(label="person") >= 3,
    "count_predictions() = 0": count_predictions() == 0,
    "top_label = 'person' AND top_score < 0.9": (
        (field.top_label == "person") & (field.top_score < 0.9)
    ),
    "frame_number > 9000 AND data_source = 'hallway-camera-feed'": (
        (meta.frame_number > 9000) & (meta.data_source == "hallway-camera-feed")
    ),
    "camera_position.angle >= 10.25": meta["camera_position.angle"] >= 10.25,
    "S_INTERSECTS(location, BBOX(-43.9, -33, -43.5, -32.5)) AND NOT ok": (
        s_intersects(field.location, bbox(-43.9, -33, -43.5, -32.5)) & ~field.ok
    ),
    "frame_number > 9000 AND prediction(label = 'person' AND score < 0.4)": (
        (meta.frame_number > 9000) & prediction(predicted.score < 0.4, label="person")
    ),
}
"""Every filter of the two pages. `test_values.py` compares the trees, and the list with the
pages."""
SENTENCES: Final[Mapping[str, Expression]] = {
    "A_EQUALS(\"tags[]\", (data_source, 'night'))": (
        a_equals(meta["tags[]"], [meta.data_source, "night"])
    ),
    "shift_end IS NOT NULL": ~meta.shift_end.is_null(),
}
"""Filters within the sentences of the pages."""
