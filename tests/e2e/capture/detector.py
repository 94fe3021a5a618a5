"""A model server of the test's own, called a stub: it finds the same two things in every image."""

import json

from aiohttp import web

FOUND = (
    {"label": "person", "score": 0.93, "xmin": 1, "ymin": 2, "xmax": 11, "ymax": 22},
    {"label": "car", "score": 0.31, "xmin": 5, "ymin": 5, "xmax": 50, "ymax": 40},
)


async def detector(request: web.Request) -> web.StreamResponse:
    """Answers V2: one output for each input; a model `broken` answers 500."""
    model = request.match_info["path"].split("/")[2]
    if model == "broken":
        return web.json_response({"error": "out of memory"}, status=500)
    asked = json.loads(await request.read())
    outputs = [
        {"name": each["name"], "shape": [len(FOUND)], "datatype": "BYTES", "data": [list(FOUND)]}
        for each in asked["inputs"]
    ]
    answer = {"model_name": model, "model_version": "3", "outputs": outputs}
    return web.json_response(answer | ({"id": asked["id"]} if "id" in asked else {}))
