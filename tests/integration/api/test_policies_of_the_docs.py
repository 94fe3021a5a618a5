"""The policies that docs/retention.md shows are set as they stand there."""

import json
import re
from pathlib import Path

import httpx

_DOCS = Path(__file__).parents[3] / "docs" / "retention.md"
_PUT = re.compile(
    r"curl -X PUT \$STORE(/v1/\S+) -H 'content-type: application/json' -d '(.*?)'\n", re.S
)


async def test_each_is_set_in_this_order(client: httpx.AsyncClient) -> None:
    shown = _PUT.findall(_DOCS.read_text())
    assert len(shown) == 4
    await client.put("/v1/models/hallway-detector", json={"project_id": "building"})
    for path, body in shown:
        answer = await client.put(path, json=json.loads(body))
        assert (answer.status_code, answer.json()["state"]) == (200, "in_force"), answer.text
        assert (await client.post(f"{path}/preview", json=json.loads(body))).status_code == 200
