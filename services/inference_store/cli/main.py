"""`inference-store <command>`: one file a command."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from inference_store.store import traces
from inference_store.store.errors import SchemaBehind
from inference_store.store.settings import WrongSetting

# Imported when run: a command needs only its own parts installed.
COMMANDS = {
    "migrate": "Bring the database's tables to this version.",
    "distribute": "Spread the tables over the nodes of a Citus cluster.",
    "ingester": "Index what arrives on Kafka.",
    "api": "Answer questions over HTTP.",
    "proxy": "Stand before a model server, and capture what goes through.",
    "retention": "Delete by policy, on a schedule.",
    "reconcile": "Compare the bucket with the index; index again from the bucket alone.",
    "doctor": "Say what is wrong with what the services need, and what to do.",
    "ledger": "Show what was decided about deletion, and replay it after a restore.",
    "certificates": "Verify the certificates of erasures, and make keys that sign them.",
    "keys": "Make, list, rotate and revoke API keys.",
    "audit": "Verify the chain over the audit.",
    "smoke": "Send one inference the whole way, read it back, erase it.",
    "demo": "Start everything on this machine and feed it real detections.",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its result is the exit code."""
    parser = argparse.ArgumentParser(prog="inference-store", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, sentence in COMMANDS.items():
        commands.add_parser(name, help=sentence, description=sentence, add_help=False)
    known, rest = parser.parse_known_args(arguments)
    module = import_module(f"inference_store.cli.{known.command}")
    command = argparse.ArgumentParser(
        prog=f"inference-store {known.command}", description=COMMANDS[known.command]
    )
    module.add_arguments(command)
    try:
        return int(module.run(command.parse_args(rest)))
    except (SchemaBehind, WrongSetting) as refused:
        sys.exit(str(refused))
    finally:
        traces.stop()


if __name__ == "__main__":
    sys.exit(main())
