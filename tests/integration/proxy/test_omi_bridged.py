"""A V2 client, the proxy, the bridge, an OMI container: what the client gets, and what is kept."""

from urllib.parse import urlsplit

from aiohttp import ClientSession

from inference_store.proxy.configuration import Configuration, UpstreamEntry
from inference_store.proxy.omi_bridge import bridged
from inference_store.proxy.protocols import Model
from inference_store.store.task_types import read_predictions, task_type_of
from tests.unit.proxy.omi_bridge.omi import Omi, served

from .rest_server import Kept, proxy

CLASSES = {"result": {"classPredictions": [{"class": "friendly", "score": 0.75}]}}


async def test_a_containers_classes_come_from_the_client_to_the_predictions() -> None:
    kept = Kept()
    tensor = {"name": "input.txt", "shape": [1], "datatype": "BYTES", "data": ["What a day."]}
    async with served(Omi(result=CLASSES)) as target:
        configuration = Configuration([UpstreamEntry(name="omi", omi=target)])
        async with bridged(configuration, 1 << 20) as found, ClientSession() as client:
            port = urlsplit(found.upstreams[0].url or "").port
            async with proxy(port or 0, kept) as here:
                url = f"http://127.0.0.1:{here}/v2/models/words/infer"
                async with client.post(url, json={"id": "7", "inputs": [tensor]}) as answer:
                    assert answer.status == 200
                    assert (await answer.json())["id"] == "7"
                exchange = await kept.first()
    call = kept.exchanges[0][1]
    task_type = "text_classification"
    reading = call.protocol.read(exchange, call, Model(task_type=task_type))
    (inference,) = reading.inferences
    assert (inference.data, reading.request_id) == (b"What a day.", "7")
    rows = read_predictions(inference.response, task_type=task_type_of(task_type)).items or ()
    assert [(row.label, row.score) for row in rows] == [("friendly", 0.75)]
