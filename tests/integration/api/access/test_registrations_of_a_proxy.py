"""A proxy reads the registrations of a real api, with a key that may do nothing else."""

import asyncio
from contextlib import suppress
from pathlib import Path

from inference_store.platform.settings import CaptureSettings
from inference_store.proxy.capture.registered_model import RegisteredModel
from inference_store.proxy.capture.registrations import Registrations
from tests.integration.api.app_server import serve_app
from tests.integration.api.conftest import MakeApp
from tests.polling import until
from tests.settings import TOKEN, make_settings

from .conftest import Keys


async def test_proxy_reads_registrations_with_a_reader_key(
    make_app: MakeApp, keys: Keys, tmp_path: Path
) -> None:
    mapping = {"boxes": "boxes", "scores": "scores", "labels": "classes", "batched": True}
    body = {"task_type": "Object Detection", "output_mapping": mapping}
    for model_id in ("yolo", "team/yolo"):
        path = f"/v1/models/{model_id.replace('/', '%2F')}"
        assert (await keys.ask(TOKEN, "PUT", path, body)).status_code < 300
    reader = await keys.make({"role": "reader"})
    async with serve_app(make_app(auth="on", api_token=TOKEN)) as client:
        settings = make_settings(
            CaptureSettings,
            proxy_registry_url=str(client.base_url),
            proxy_registry_key=reader,
            proxy_registry_file=tmp_path / "models.json",
            proxy_registry_seconds=0.2,
        )
        registrations = Registrations(settings)
        task = asyncio.create_task(registrations.keep_current())

        async def find_models() -> list[RegisteredModel | None]:
            return [registrations.of(name) for name in ("yolo", "team/yolo")]

        await until(find_models, all)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert await find_models() == [RegisteredModel(task_type="object_detection", batched=True)] * 2
