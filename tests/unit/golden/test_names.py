"""Names that operators and clients write down: settings, metrics, commands, reasons."""

import argparse
from collections.abc import Iterator

from pydantic_core import PydanticUndefined

from inference_store.access.rights import ROLES, Action, Right
from inference_store.cli.main import COMMANDS, build_root_parser, import_command
from inference_store.erasure.ledger_entries import KINDS
from inference_store.inference import errors
from inference_store.inference.errors import StoreError
from inference_store.inference.events import DEAD_LETTER_REASONS, FIELDS
from inference_store.inference.metadata import TYPE_NAMES
from inference_store.inference.producer_reports import DROP_REASONS
from inference_store.inference.task_types import TASK_TYPES
from inference_store.operations.doctor import CHECKS
from inference_store.platform.metrics import METRICS
from inference_store.platform.settings import GROUPS, PREFIX, secrets_of
from inference_store.platform.settings.group import SettingsGroup
from inference_store.proxy.protocols import PROTOCOLS
from inference_store.query.aggregates import AGGREGATES
from inference_store.query.properties import OPERATORS

from .golden import check


def test_settings() -> None:
    check("settings.txt", join_lines(line for group in GROUPS for line in list_settings(group)))


def test_metrics() -> None:
    descriptions = (
        f"{metric.kind} {metric.name}{{{','.join(metric.labels)}}} {metric.owner}"
        for metric in sorted(METRICS, key=lambda metric: metric.name)
    )
    check("metrics.txt", join_lines(descriptions))


def test_commands() -> None:
    options = [*list_options("inference-store", build_root_parser())]
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        import_command(name).add_arguments(parser)
        options += list_options(f"inference-store {name}", parser)
    check("commands.txt", join_lines(options))


def test_lists() -> None:
    refusals = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    lists_by_name = {
        "aggregate": [aggregate.name for aggregate in AGGREGATES.values()],
        "audit action": [action.value for action in Action],
        "check of the doctor": [doctor_check.name for doctor_check in CHECKS],
        "dead letter": DEAD_LETTER_REASONS,
        "drop": DROP_REASONS,
        "error": [f"{x.status} {x.type}" for x in refusals if issubclass(x, StoreError)],
        "field of an event": FIELDS,
        "kind of the ledger": [ledger_kind.name for ledger_kind in KINDS],
        "metadata type": TYPE_NAMES,
        "operator": OPERATORS,
        "protocol": PROTOCOLS,
        "right": [right.value for right in Right],
        "role": [f"{role}: {' '.join(sorted(ROLES[role]))}" for role in ROLES],
        "task type": TASK_TYPES,
    }
    check(
        "lists.txt",
        join_lines(sorted(f"{what}: {n}" for what, names in lists_by_name.items() for n in names)),
    )


def join_lines(texts: Iterator[str] | list[str]) -> str:
    return "".join(f"{line}\n" for line in texts)


def list_settings(group: type[SettingsGroup]) -> Iterator[str]:
    """Yield each setting of a service with its default; `!` marks a secret."""
    yield f"# {group.__name__.removesuffix('Settings').lower()}"
    for name, field in sorted(group.model_fields.items()):
        secret = "!" if name in secrets_of(group) else ""
        default = "required" if field.default is PydanticUndefined else f"= {field.default!r}"
        yield f"{secret}{PREFIX}{name.upper()} {default}"


def list_options(program: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a command and each of its options, then those of the commands below it."""
    yield program
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from list_options(f"{program} {name}", below)
        elif not isinstance(action, argparse._HelpAction):
            names = ", ".join(action.option_strings) or action.dest
            choices = "" if action.choices is None else f" {list(action.choices)}"
            yield f"  {names}{choices}{' required' if action.required else ''}"
