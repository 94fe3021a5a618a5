"""`istore count`: counts the inferences that match, exactly."""

import argparse

from inference_store_client.reading import count

from .arguments import IMPATIENT, add_conditions, add_store, make_question, open_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_conditions(parser)
    add_store(parser)


def run(options: argparse.Namespace) -> int:
    """Print the number."""
    with open_store(options, IMPATIENT) as transport:
        print(transport.run(count(make_question(options), transport.settings)))
    return 0
