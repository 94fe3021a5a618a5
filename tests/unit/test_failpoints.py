"""Every effect on the world that deletion has lies between two failpoints, and each of these is
where some test kills."""

import ast
from collections.abc import Iterator
from pathlib import Path

import inference_store
from inference_store.platform.failpoints import FAILPOINTS
from tests.e2e.faults import test_ingester_failpoints
from tests.e2e.faults.deletion import test_kills as kills_beside_holds
from tests.integration.api import test_edits_and_erasures
from tests.integration.erasure.ledger import test_services
from tests.integration.operations.reconcile import test_orphans, test_rebuild
from tests.integration.retention import test_export_jobs, test_kills, test_webhooks

ROOT = Path(inference_store.__file__).parent
LOOKED_AT = [
    *(path for path in sorted((ROOT / "retention").glob("*.py"))),
    *(path for path in sorted((ROOT / "export" / "jobs").glob("*.py"))),
    ROOT / "erasure" / "certify" / "list_writer.py",
    ROOT / "erasure" / "ledger" / "ledger.py",
]
# Calls that change what is outside of the process, by their last name.
EFFECTS = {
    "begin",
    "delete_objects",
    "forget_requests",
    "put",
    "put_new",
    "put_leaves",
    "drop_span",
    "put_file",
}
PASSED = {"failpoint", "failpoint_of_task"}
# Named like one.
NONE = {"traces.begin", "self._certifier.begin", "worker.begin", "erasures.begin_deleting"}
# Between which failpoints the callers of a function are; or why a kill in it is none of deletion.
BETWEEN = {
    "certifier._import": ("retention.certify.put.after", "retention.certify.commit.after"),
    "export_eraser._delete_objects": (
        "retention.export_delete.before",
        "retention.export_delete.after",
    ),
    "list_writer.write_list": ("retention.certify.before", "retention.certify.leaves.after"),
    "batch_claim.claim_batch": ("retention.claim.before", "retention.claim.after"),
    "run_executor._drop": ("retention.span_close.after", "retention.partition_drop.after"),
    "dropping.reopen_span": ("retention.span_close.before", "retention.partition_drop.after"),
    "dropping.drop_span": ("retention.partition_drop.before", "retention.partition_drop.after"),
    "run_executor._close": ("retention.span_close.before", "retention.span_close.after"),
    "orphan_eraser._claim": ("orphans.batch.after", "orphans.claim.after"),
    "orphan_eraser._measure_aged": ("orphans.claim.after", "retention.object_delete.before"),
    "orphan_deletion.delete": ("retention.object_delete.before", "orphans.forget.before"),
    "orphan_deletion._forget": ("orphans.forget.before", "orphans.forget.after"),
    "listing._confirm_or_delete": ("export.list.after", "export.list.commit.after"),
    "part_writing._delete_unwritten": ("export.write.named", "export.write.commit.after"),
    "part_writing._clear": ("export.write.before", "export.write.named"),
    "part_writing._end_empty": ("export.write.before", "export.write.named"),
    "removal._delete_objects": ("export.remove.before", "export.remove.after"),
    "webhook_worker._record": ("retention.webhook.send.after", "retention.webhook.record.after"),
    "ledger._put": ("ledger.put.before", "ledger.put.after"),
}
ALONE = {
    "dropping._delete_orphan_rows": "rows without their inference: a batch a transaction",
    "certifier._certify": "the first failpoint lies before it, those of _sign and _append after it",
    "certifier._end_erasure": "an erasure that has its certificate is said to be over",
    "uncertified.end_uncertified": "an erasure that has no certificate is said to be over",
    "waiver.waive_held": "what is given up is in the ledger; the next turn says the end again",
    "residual_in_holds.remove_recorded": "noted values: a batch a transaction, by every turn",
    "labels._remove_page": "unused labels: a page a transaction, and again at the next start",
    "erasure_worker._mark_released": "what a hold protected is marked again, batch by batch",
    "marker._unmark": "marks go in batches; what is left of them is taken away by the next turn",
    "worker.begin": "runs of a dead process are said to begin again",
    "run_worker.request_scheduled": "a run is requested, if none is",
    "housekeeping.delete_idle_records": "our own records, which the next turn deletes",
    "housekeeping._repeat": "our own records: batch by batch, which the next turn repeats",
    "linking.link_all": "the chain over the audit: one transaction, which goes on where it was",
    "marker._fail": "an erasure's fault is said; it is tried again without it as well",
    "orphan_eraser._gather_names": "names that are gathered again by the next process",
    "orphan_eraser._name_next": "then the ledger, between orphans.batch.before and after",
    "orphan_eraser._finish": "an erasure of orphans is over; the next turn records it again",
    "record_deletion._open_transaction": "our own records: one transaction a batch",
    "requests._rewrite": "between the failpoints of objects.erase_objects",
    "size_reader._read_some": "a size that was asked of the bucket, and is asked again",
    "run_executor._find_limit": "counts, which are counted again",
    "ledger._intend": "a note that no entry answers; ledger.intend.after comes next",
    "ledger._turn": "a lock of the session, which a kill gives back",
    "ledger.replay": "reads the head: what takes effect does so in _take_effect",
    "ledger.restart": "a person's command, which is given again",
    "export_worker._fail": "an export's fault is recorded; it is tried again without it as well",
    "export_worker._delay": "why an export waits; the next turn goes on at once without it",
    "export_worker._reopen_incomplete": "a part is to be written again; the next process finds it",
    "taken_over_parts.delete": "objects that no part names, which the next turn deletes",
    "part_encoding._find_keys": "the keys of a restored export, which the next process reads again",
    "listing.list_some": "a position of the search, which the next process finds again",
    "listing.begin_listing": "a head that the next process writes again",
    "webhook_worker._find_event": "reads what is sent next; that there is nothing is read again",
    "ledger._settle": "reads the head: what takes effect does so in _take_effect",
}


def list_functions() -> Iterator[tuple[str, ast.AST]]:
    """Every function that deletion is made of, by module and name."""
    for path in LOOKED_AT:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.stem}.{node.name}", node


def list_calls(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The calls in a function, and what it hands to a thread: line and last name."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            for called in (call.func, *call.args[:1]):
                if isinstance(called, ast.Attribute) and ast.unparse(called) not in NONE:
                    yield called.lineno, called.attr
                elif isinstance(called, ast.Name):
                    yield called.lineno, called.id


def test_every_effect_lies_between_two_failpoints() -> None:
    unguarded, names_with_effects = [], set()
    for name, node in list_functions():
        calls = list(list_calls(node))
        effects = [line for line, called in calls if called in EFFECTS]
        places = [line for line, called in calls if called in PASSED]
        if not effects:
            continue
        names_with_effects.add(name)
        if name in BETWEEN or name in ALONE:
            continue
        if not places or not min(places) < min(effects) <= max(effects) < max(places):
            unguarded.append(name)
    assert unguarded == []
    assert (BETWEEN.keys() | ALONE.keys()) - names_with_effects == set(), "no effect there any more"
    assert {failpoint for pair in BETWEEN.values() for failpoint in pair} <= set(FAILPOINTS)


def test_every_failpoint_is_passed_somewhere_and_listed() -> None:
    passed = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in PASSED:
                passed |= {
                    argument.value for argument in node.args if isinstance(argument, ast.Constant)
                }
    assert passed == set(FAILPOINTS)


KILLS = {
    test_ingester_failpoints.test_killed_at: test_ingester_failpoints.INGESTER_FAILPOINTS,
    test_services.test_a_kill_in_a_write_is_harmless: test_services.LEDGER_FAILPOINTS,
    test_kills.test_a_kill_loses_nothing_and_leaves_nothing: test_kills.RETENTION_FAILPOINTS,
    kills_beside_holds.test_a_kill_loses_nothing_and_leaves_nothing: (
        kills_beside_holds.DELETION_FAILPOINTS
    ),
    test_edits_and_erasures.test_a_crash_between_blob_and_rows_leaves_no_orphan: (
        test_edits_and_erasures.PLACES
    ),
    test_rebuild.test_killed_rebuild_continues: test_rebuild.REBUILD_FAILPOINTS,
    test_orphans.test_killed_erasure_ends_with_one_certificate: test_orphans.ORPHAN_FAILPOINTS,
    test_export_jobs.test_a_kill_loses_nothing_and_doubles_nothing: (
        test_export_jobs.EXPORT_FAILPOINTS
    ),
    test_export_jobs.test_a_kill_leaves_nothing_of_a_cancelled_export: (
        test_export_jobs.REMOVAL_FAILPOINTS
    ),
    test_webhooks.test_a_kill_repeats_the_message_with_its_id: test_webhooks.WEBHOOK_FAILPOINTS,
}


def test_every_failpoint_is_met_by_a_kill() -> None:
    """In `make long`, and with processes started cold in `make faults-cold`: both run these."""
    assert set(FAILPOINTS) == {failpoint for places in KILLS.values() for failpoint in places}
    for test in KILLS:
        marks = {mark.name for mark in getattr(test, "pytestmark", ())}
        assert "kills" in marks, f"{test.__module__}.{test.__name__} is not marked `kills`"
        assert "faults" not in marks, f"{test.__name__} would be left out of `make long`"
