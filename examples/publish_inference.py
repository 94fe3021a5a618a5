"""A producer in 60 lines: three blobs to S3, then the nine-field event to Kafka.

Run it against a demo that serves (`make demo` prints the addresses; S3's keys are in
`.inference-store/passwords.json`):

    S3=http://127.0.0.1:PORT KEY=… SECRET=… KAFKA=127.0.0.1:PORT \\
        .venv/bin/python examples/publish_inference.py
"""

import asyncio
import json
import os
from datetime import UTC, datetime
from uuid import uuid4

from aiokafka import AIOKafkaProducer
from obstore.store import S3Store

BUCKET = os.environ.get("BUCKET", "inferences")
TOPIC = os.environ.get("TOPIC", "inference-events")


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


async def main() -> None:
    store = S3Store(
        BUCKET,
        endpoint=os.environ["S3"],
        access_key_id=os.environ["KEY"],
        secret_access_key=os.environ["SECRET"],
        region="us-east-1",
        client_options={"allow_http": True},
    )
    received, inference_id = now(), str(uuid4())
    folder = f"examples/my-model/{inference_id}"
    metadata = [{"key": "frame_number", "type": "int", "value": "987"}]
    response = {
        "outputs": [
            {
                "name": "predictions",
                "datatype": "BYTES",
                "shape": [1],
                "data": [json.dumps([{"label": "cat", "score": 0.7}])],
            }
        ]
    }
    # Blobs first, event second: a crash in between leaves an object that nothing points to.
    await store.put_async(f"{folder}/data", b"whatever the model was asked about")
    await store.put_async(f"{folder}/metadata", json.dumps(metadata).encode())
    await store.put_async(f"{folder}/response", json.dumps(response).encode())
    event = {
        "model_id": "my-model",
        "inference_id": inference_id,
        "request_received_at": received,
        "request_forwarded_at": received,
        "request_responded_at": now(),
        "event_published_at": now(),
        "data_storage_key": f"{folder}/data",
        "inference_storage_key": f"{folder}/response",
        "metadata_storage_key": f"{folder}/metadata",
        "task_type": "Image Classification",
    }
    producer = AIOKafkaProducer(bootstrap_servers=os.environ["KAFKA"])
    await producer.start()
    await producer.send_and_wait(TOPIC, json.dumps(event).encode())
    await producer.stop()
    print(f"published {inference_id}")


asyncio.run(main())
