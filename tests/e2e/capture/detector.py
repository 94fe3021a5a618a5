"""A model server of the test's own, called a stub: it finds the same two things in every image."""

import json

from aiohttp import web

DETECTIONS = (
    {"label": "person", "score": 0.93, "xmin": 1, "ymin": 2, "xmax": 11, "ymax": 22},
    {"label": "car", "score": 0.31, "xmin": 5, "ymin": 5, "xmax": 50, "ymax": 40},
)


async def detector(request: web.Request) -> web.StreamResponse:
    """Answer V2: one output for each input; a model `broken` answers 500."""
    model = request.match_info["path"].split("/")[2]
    if model == "broken":
        return web.json_response({"error": "out of memory"}, status=500)
    request_body = json.loads(await request.read())
    outputs = [
        {
            "name": tensor["name"],
            "shape": [len(DETECTIONS)],
            "datatype": "BYTES",
            "data": [list(DETECTIONS)],
        }
        for tensor in request_body["inputs"]
    ]
    answer = {"model_name": model, "model_version": "3", "outputs": outputs}
    return web.json_response(answer | ({"id": request_body["id"]} if "id" in request_body else {}))
