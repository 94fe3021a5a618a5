"""The tables of the docs that are lists of the code, by the name of their mark."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from pydantic import SecretStr

from inference_store.access.rights import ACTIONS, RIGHTS, ROLES, Action, Right
from inference_store.api.answer import list_kinds
from inference_store.erasure.housekeeping import RECORD_KINDS
from inference_store.erasure.ledger_entries import KINDS
from inference_store.erasure.runs import FAILURES
from inference_store.inference.events import CAPTURE_PROBLEMS, DEAD_LETTER_REASONS
from inference_store.inference.field_docs import NUMBER_LIMITS, field_docs
from inference_store.inference.producer_reports import DROP_REASONS
from inference_store.inference.task_types import TASK_TYPES
from inference_store.operations.doctor import CHECKS
from inference_store.platform.metrics import METRICS
from inference_store.platform.settings import GROUPS, PREFIX, SettingsGroup, secrets_of
from inference_store.query.aggregates import AGGREGATES
from inference_store.query.cql2.operations import ARGUMENTS, OPERATIONS
from inference_store.query.properties import OPERATORS
from inference_store.truth.documents import MOST_ITEMS, MOST_LABEL, MOST_SOURCE, MOST_TEXT
from inference_store.truth.rows import MOST_ADDRESS, MOST_ROW

from .client_reference import list_client

Row: TypeAlias = tuple[str, ...]


def list_secrets() -> str:
    """Return the names of the settings that are secrets, in one line."""
    return ", ".join(_code(name) for name in sorted(_secrets()))


def list_settings(*classes: str) -> str:
    """Return the table of the settings that these classes declare, in the order of the code."""
    found: dict[str, Row] = {}
    for group in GROUPS:
        for kind in [kind for name in classes for kind in group.__mro__ if kind.__name__ == name]:
            fields = [name for name in group.model_fields if name in kind.__annotations__]
            found |= {name: _setting(group, name) for name in fields}
    return _table(("setting", "default", "what it does"), found.values())


def _setting(group: type[SettingsGroup], name: str) -> Row:
    default = group.model_fields[name].get_default(call_default_factory=True)
    plain = default.get_secret_value() if isinstance(default, SecretStr) else default
    shown = "" if plain in (None, "", ()) else _code(str(plain))
    return _code(f"{PREFIX}{name.upper()}"), shown, field_docs(group)[name]


def _secrets() -> set[str]:
    return {name.upper() for group in GROUPS for name in secrets_of(group)}


def list_metrics(*words: str) -> str:
    """Return the table of the metrics that a service sets: `every`, `all but proxy`, `api`."""
    owned = [metric for metric in METRICS if metric.owner == " ".join(words)]
    rows = [(_code(m.name), _codes(m.labels), m.sentence) for m in owned]
    return _table(("metric", "labels", "what it tells"), rows)


def list_errors() -> str:
    """Return the table of every type of error."""
    kinds = sorted(list_kinds(), key=lambda kind: kind.type)
    rows = [(f"[{_code(k.type)}](#{k.type})", str(k.status), f"{k.title}.") for k in kinds]
    return _table(("type", "status", "title"), rows)


def list_roles() -> str:
    """Return the table of the roles with their rights."""
    rows = [
        (_code(role), "all of them" if role == "owner" else _codes(r.value for r in held))
        for role, held in ((role, [r for r in Right if r in held]) for role, held in ROLES.items())
    ]
    return _table(("role", "rights"), rows)


def list_operators() -> str:
    """Return the table of the comparison operators."""
    rows = [(_code(o.name), _codes(o.aliases), o.takes, o.meaning) for o in OPERATORS.values()]
    return _table(("operator", "also", "takes", "holds when"), rows)


def list_functions() -> str:
    """Return the table of the store's own functions in filters."""
    rows = [
        (_code(e.text), ", ".join(ARGUMENTS[t].words for t in e.takes) or "nothing", e.about)
        for e in OPERATIONS.values()
        if e.own
    ]
    return _table(("function", "takes", "is"), rows)


def list_aggregates() -> str:
    """Return the table of the aggregate functions."""
    rows = [
        (
            _code(entry.name),
            ", ".join(sorted(entry.kinds)) + (", or nothing" if entry.name == "count" else ""),
            _codes(entry.options),
            entry.meaning,
        )
        for entry in AGGREGATES.values()
    ]
    return _table(("function", "of", "options", "is"), rows)


def list_records() -> str:
    """Return the table of the store's own records, and of the settings that keep them."""
    rows = [
        (_code(kind.name), kind.sentence, _code(f"{PREFIX}{kind.setting.upper()}"))
        for kind in RECORD_KINDS
    ]
    return _table(("records", "what may go", "after"), rows)


def _pairs(head: Row, pairs: Iterable[tuple[str, str]]) -> Callable[[], str]:
    return lambda: _table(head, [(_code(name), sentence) for name, sentence in pairs])


def _table(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    # without spaces, as everywhere here
    written = [f"| {' | '.join(line)} |" for line in lines]
    written[1] = "|---" * len(head) + "|"
    return "\n".join(written)


def _codes(names: Iterable[str]) -> str:
    return ", ".join(map(_code, names))


def _code(text: str) -> str:
    return f"`{text}`"


def list_client_members(name: str) -> str:
    """Return the table of a class of the Python client, or of a group of its names."""
    return _table(*list_client(name))


FAMILIES: Final[Mapping[str, Callable[..., str]]] = {
    "settings": list_settings,
    "metrics": list_metrics,
    "client": list_client_members,
}
_REASON: Final = ("reason", "what it means")
TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "secrets": list_secrets,
    "errors": list_errors,
    "roles": list_roles,
    "operators": list_operators,
    "functions": list_functions,
    "aggregates": list_aggregates,
    "records": list_records,
    "rights": _pairs(("right", "what it allows"), [(r.value, RIGHTS[r]) for r in Right]),
    "actions": _pairs(("action", "what was done"), [(a.value, ACTIONS[a]) for a in Action]),
    "reasons": _pairs(_REASON, DEAD_LETTER_REASONS.items()),
    "capture": _pairs(_REASON, CAPTURE_PROBLEMS.items()),
    "drops": _pairs(_REASON, DROP_REASONS.items()),
    "failures": _pairs(_REASON, FAILURES.items()),
    "truth limits": _pairs(
        ("field", "limit"),
        [
            ("source", f"1 to {MOST_SOURCE} characters"),
            ("items", f"{MOST_ITEMS:,} of a set"),
            ("label", f"{MOST_LABEL:,} characters"),
            ("text", f"{MOST_TEXT:,} characters"),
            ("value", NUMBER_LIMITS),
            ("metadata.KEY", f"{MOST_ADDRESS:,} bytes, key and value together"),
            ("any", f"{MOST_ROW:,} bytes in a line of NDJSON, a value of CSV, or a message"),
        ],
    ),
    "ledger": _pairs(("kind", "what it says"), [(k.name, k.sentence) for k in KINDS]),
    "task types": _pairs(
        ("name", "what an element of `data` looks like"),
        [(name, entry.element) for name, entry in TASK_TYPES.items()],
    ),
    "checks": lambda: _table(
        ("check", "what should be"), [(check.name, check.sentence) for check in CHECKS]
    ),
}
