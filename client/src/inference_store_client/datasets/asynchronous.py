"""Writes a dataset: pictures are downloaded beside each other, and written in order."""

import asyncio
from functools import partial

from inference_store_client.asynchronous import AsyncTransport
from inference_store_client.datasets.summary import DatasetSummary
from inference_store_client.datasets.writing import (
    DatasetRequest,
    DatasetWriting,
    Download,
    Links,
    Window,
    read_download,
)
from inference_store_client.question import Question
from inference_store_client.streaming import Build, stream

Downloads = Window[asyncio.Task[Download]]


async def write_dataset(
    transport: AsyncTransport, question: Question, build: Build, request: DatasetRequest
) -> DatasetSummary:
    """Write every match into a new folder. Raises StoreError or OSError, and leaves no folder."""
    read = partial(
        read_download,
        settings=transport.settings,
        links=Links(),
        has_outlines=request.format.has_outlines,
    )
    window = Downloads()
    matches = transport.iterate(stream(question.with_pictures(), build, transport.settings))
    with DatasetWriting(request) as writing:
        try:
            async for inference in matches:
                task = asyncio.create_task(transport.run(read(inference)))
                window.push(inference, task)
                while window.is_full:
                    await _take(window, writing)
            while window:
                await _take(window, writing)
        finally:
            await _cancel(window)
        return await asyncio.to_thread(writing.finish)


async def _take(window: Downloads, writing: DatasetWriting) -> None:
    inference, task = window.pop()
    download = await task
    await asyncio.to_thread(writing.add, inference, download)


async def _cancel(window: Downloads) -> None:
    tasks = [window.pop()[1] for _ in range(len(window))]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
