"""A proxy reads the registrations of a real api, with a key that may do nothing else."""

import asyncio
from contextlib import suppress
from pathlib import Path

from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.capture.registered import Registered
from inference_store.proxy.capture.registrations import Registrations
from tests.integration.api.conftest import MakeApp
from tests.integration.api.served import served
from tests.polling import until
from tests.settings import TOKEN, make_settings

from .conftest import Keys


async def test_a_reader_is_enough(make_app: MakeApp, a_key: Keys, tmp_path: Path) -> None:
    mapping = {"boxes": "boxes", "scores": "scores", "labels": "classes", "batched": True}
    body = {"task_type": "Object Detection", "output_mapping": mapping}
    for model_id in ("yolo", "team/yolo"):
        path = f"/v1/models/{model_id.replace('/', '%2F')}"
        assert (await a_key.ask(TOKEN, "PUT", path, body)).status_code < 300
    reader = await a_key.make({"role": "reader"})
    async with served(make_app(auth="on", api_token=TOKEN)) as client:
        settings = make_settings(
            CaptureSettings,
            proxy_registry_url=str(client.base_url),
            proxy_registry_key=reader,
            proxy_registry_file=tmp_path / "models.json",
        )
        registrations = Registrations(settings)
        task = asyncio.create_task(registrations.keep_current())

        async def found() -> list[Registered | None]:
            return [registrations.of(name) for name in ("yolo", "team/yolo")]

        await until(found, all, seconds=60)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert await found() == [Registered(task_type="object_detection", batched=True)] * 2
