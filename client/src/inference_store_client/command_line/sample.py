"""`istore sample`: shows a random sample of the inferences that match."""

import argparse

from inference_store_client.reading import read_sample

from .arguments import (
    IMPATIENT,
    add_columns,
    add_conditions,
    add_store,
    make_question,
    open_store,
    parse_size,
)
from .printing import RowPrinter, add_format, choose_columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_conditions(parser)
    parser.add_argument(
        "--size",
        type=parse_size,
        default=20,
        help="how many, at most 10,000 (default: %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="another seed takes another sample (default: 0)"
    )
    add_columns(parser)
    add_format(parser)
    add_store(parser)


def run(options: argparse.Namespace) -> int:
    """Show them."""
    question = make_question(options, choose_columns(options))
    with open_store(options, IMPATIENT) as transport:
        steps = read_sample(question, dict, transport.settings, options.size, options.seed)
        RowPrinter(options).print_rows(transport.iterate(steps))
    return 0
