"""`istore export`: writes all inferences that match to a file or a folder, whole or not at all.

The store sends them on the route of a query, as a stream that is resumed. With `--job` the store
writes files (`export_job.py`).
"""

import argparse
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from inference_store_client.command_line.export_job import Progress
from inference_store_client.datasets import FORMATS as DATASETS
from inference_store_client.datasets.writing import make_dataset_request, write_dataset
from inference_store_client.errors import SettingsError
from inference_store_client.private_files import NewFile
from inference_store_client.streaming import Chunk, Restart

from . import export_job
from .arguments import add_columns, add_conditions, add_store, make_question, open_store
from .ending import say
from .export_formats import FORMATS, find_ending
from .main import Command

_ALL: Final = sorted({*FORMATS, *DATASETS, *export_job.FORMATS})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_conditions(parser)
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="the file to write; of a dataset of pictures, and with --job: the new folder",
    )
    parser.add_argument(
        "--format",
        choices=_ALL,
        help="default: as the name of -o ends; a job whose name says none writes parquet",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace the file if it is there; never a folder"
    )
    add_columns(parser)
    export_job.add_arguments(parser)
    add_store(parser)


def run(options: argparse.Namespace) -> int:
    """Write the file. It appears when it is whole."""
    _refuse_standard_output(options.output)
    if options.force and (options.job or options.format in DATASETS):
        raise SettingsError(f"--force replaces a file alone: remove {options.output} first")
    if options.job:
        return export_job.run(options)
    export_job.refuse_options(options)
    if options.format in {*export_job.FORMATS} - {*FORMATS, *DATASETS}:
        raise SettingsError(f"--format {options.format}: only the store writes it; add --job")
    if options.format in DATASETS:
        return _write_dataset(options)
    export_format = FORMATS[options.format or _find_format(options.output)]
    export_format.require()
    _check_output(options.output, force=options.force)
    question = make_question(options, options.columns)
    with (
        open_store(options) as transport,
        closing(Progress()) as progress,
        closing(NewFile(options.output)) as file,
    ):
        for chunk in transport.iterate(export_format.stream(question)):
            if isinstance(chunk, Restart):
                file.begin_again()
            else:
                file.write(chunk.content)
            progress.accept(chunk)
        export_format.finish(file)
        file.publish()
    say(f"{progress.describe()}: {options.output}")
    return 0


def _write_dataset(options: argparse.Namespace) -> int:
    """Write pictures and predictions to a new folder, which appears when it is whole."""
    if options.columns is not None:
        raise SettingsError("a dataset has no columns: leave --columns out")
    request = make_dataset_request(options.format, options.output, None)
    with open_store(options) as transport, closing(Progress()) as progress:
        request = replace(request, on_added=lambda data: progress.accept(Chunk(data, 1)))
        steps = write_dataset(make_question(options), request)
        summary = transport.run(steps)
    say(f"{progress.describe()}\n{summary}")
    return 0


def _find_format(output: Path) -> str:
    """Return the format that the ending of a name says."""
    ending = find_ending(output)
    if ending is None:
        raise SettingsError(f"{output} does not say its format: --format {'|'.join(_ALL)}")
    return ending


def _refuse_standard_output(path: Path) -> None:
    if str(path) == "-":
        raise SettingsError("- is no ordinary file: name one; `query` prints lines of JSON")


def _check_output(path: Path, *, force: bool) -> None:
    if not path.parent.is_dir():
        raise SettingsError(f"{path.parent} is no folder: make it first")
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise SettingsError(f"{path} is no ordinary file: give another name")
    if path.exists() and not force:
        raise SettingsError(f"{path} exists: --force replaces it")


EXPORT: Final = Command(add_arguments, run)
