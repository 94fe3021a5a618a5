"""Each failpoint of the product is listed, and in a chain of kills."""

import ast
from pathlib import Path

import inference_store
from inference_store.platform.failpoints import FAILPOINTS
from tests.e2e.faults.deletion.test_kills import DELETION_FAILPOINTS
from tests.e2e.faults.test_ingester_failpoints import INGESTER_FAILPOINTS
from tests.integration.api.test_edits_and_erasures import PLACES
from tests.integration.erasure.ledger.test_services import LEDGER_FAILPOINTS
from tests.integration.operations.reconcile.test_orphans import ORPHAN_FAILPOINTS
from tests.integration.operations.reconcile.test_rebuild import REBUILD_FAILPOINTS
from tests.integration.retention.test_export_jobs import EXPORT_FAILPOINTS, REMOVAL_FAILPOINTS
from tests.integration.retention.test_kills import RETENTION_FAILPOINTS

CHAINS = [
    *(DELETION_FAILPOINTS, INGESTER_FAILPOINTS, PLACES, LEDGER_FAILPOINTS, ORPHAN_FAILPOINTS),
    *(REBUILD_FAILPOINTS, EXPORT_FAILPOINTS, REMOVAL_FAILPOINTS, RETENTION_FAILPOINTS),
]


def test_each_failpoint_is_listed_and_killed_at() -> None:
    passed = set()
    for path in Path(inference_store.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if getattr(getattr(node, "func", None), "id", "") in {"failpoint", "failpoint_of_task"}:
                arguments = getattr(node, "args", ())
                passed |= {each.value for each in arguments if isinstance(each, ast.Constant)}
    assert passed == set(FAILPOINTS)
    assert {name for chain in CHAINS for name in chain} == set(FAILPOINTS)
