"""Writes a dataset: pictures are downloaded beside each other, and written in order."""

from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial

from inference_store_client.datasets.summary import DatasetSummary
from inference_store_client.datasets.writing import (
    MOST_DOWNLOADS,
    DatasetRequest,
    DatasetWriting,
    Download,
    Links,
    Window,
    read_download,
)
from inference_store_client.question import Question
from inference_store_client.streaming import Build, stream
from inference_store_client.sync import Transport
from inference_store_client.values.inference import InferenceFields

Downloads = Window[Future[Download]]


def write_dataset(
    transport: Transport, question: Question, build: Build, request: DatasetRequest
) -> DatasetSummary:
    """Write every match into a new folder. Raises StoreError or OSError, and leaves no folder."""
    read = partial(
        read_download,
        settings=transport.settings,
        links=Links(),
        has_outlines=request.format.has_outlines,
    )
    window = Downloads()
    with (
        DatasetWriting(request) as writing,
        ThreadPoolExecutor(MOST_DOWNLOADS) as threads,
        closing(_iterate(transport, question, build)) as matches,
    ):
        try:
            for inference in matches:
                window.push(inference, threads.submit(transport.run, read(inference)))
                while window.is_full:
                    _take(window, writing)
            while window:
                _take(window, writing)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
        return writing.finish()


def _iterate(transport: Transport, question: Question, build: Build) -> Generator[InferenceFields]:
    yield from transport.iterate(stream(question.with_pictures(), build, transport.settings))


def _take(window: Downloads, writing: DatasetWriting) -> None:
    inference, download = window.pop()
    writing.add(inference, download.result())
