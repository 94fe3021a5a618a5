"""`istore export --format coco`: writes the pictures and predictions that match to a new folder."""

import argparse
from dataclasses import replace
from functools import partial

from inference_store_client.command_line.export_job import Progress
from inference_store_client.datasets.sync import write_dataset
from inference_store_client.datasets.writing import make_dataset_request
from inference_store_client.decoding import decode
from inference_store_client.errors import SettingsError
from inference_store_client.streaming import Chunk
from inference_store_client.sync import Inference

from .arguments import make_question, open_store
from .ending import say


def run(options: argparse.Namespace) -> int:
    """Write the folder. It appears when it is whole."""
    if options.columns is not None:
        raise SettingsError("a dataset has no columns: leave --columns out")
    request = make_dataset_request(options.format, options.output, None)
    with open_store(options) as transport, Progress() as progress:
        request = replace(request, on_added=lambda data: progress.accept(Chunk(data, 1)))
        build = partial(decode, Inference, _transport=transport)
        summary = write_dataset(transport, make_question(options), build, request)
    say(f"{progress.describe()}\n{summary}")
    return 0
