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
from tests.integration.retention import test_kills

ROOT = Path(inference_store.__file__).parent
LOOKED_AT = [
    *(path for path in sorted((ROOT / "retention").glob("*.py"))),
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
}
PASSED = {"failpoint", "failpoint_of_task"}
# Named like one.
NONE = {"traces.begin", "self._certifier.begin", "worker.begin", "erasures.begin_deleting"}
# Between which failpoints the callers of a function are; or why a kill in it is none of deletion.
BETWEEN = {
    "certifier._import": ("retention.certify.put.after", "retention.certify.commit.after"),
    "certifier._put_piece": ("retention.certify.before", "retention.certify.leaves.after"),
    "eraser._claim": ("retention.claim.before", "retention.claim.after"),
    "run_executor._drop": ("retention.span_close.after", "retention.partition_drop.after"),
    "dropping.reopen_span": ("retention.span_close.before", "retention.partition_drop.after"),
    "dropping.drop_span": ("retention.partition_drop.before", "retention.partition_drop.after"),
    "run_executor._close": ("retention.span_close.before", "retention.span_close.after"),
    "orphans._claim": ("orphans.batch.after", "orphans.claim.after"),
    "orphans._measure_aged": ("orphans.claim.after", "retention.object_delete.before"),
    "orphans._forget": ("orphans.forget.before", "orphans.forget.after"),
    "orphans._record_failures": ("orphans.forget.before", "orphans.forget.after"),
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
    "worker._mark_released": "what a hold let go is marked again: a batch a transaction",
    "marker._unmark": "marks go in batches; what is left of them is taken away by the next turn",
    "worker.begin": "runs of a dead process are said to begin anew",
    "worker.run_turn": "a run is asked for, if none is",
    "worker._do_housekeeping": "our own records: one transaction each, repeated by the next turn",
    "worker._fold_producers": "our own records: sums of producers",
    "linking.link_all": "the chain over the audit: one transaction, which goes on where it was",
    "marker._fail": "an erasure's fault is said; it is tried again without it as well",
    "orphans._gather_names": "names that are gathered anew by the next process",
    "orphans._name_next": "then the ledger, between orphans.batch.before and after",
    "orphans._finish": "an erasure of orphans is said to be over; the next turn says it again",
    "housekeeping._open_transaction": "our own records: one transaction a batch",
    "requests._rewrite": "between the failpoints of objects.erase_objects",
    "size_reader._read_some": "a size that was asked of the bucket, and is asked again",
    "run_executor._find_limit": "counts, which are counted again",
    "ledger._intend": "a note that no entry answers; ledger.intend.after comes next",
    "ledger._turn": "a lock of the session, which a kill gives back",
    "ledger.replay": "reads the head: what takes effect does so in _take_effect",
    "ledger.begin_anew": "a person's command, which is given again",
    "ledger._settle": "reads the head: what takes effect does so in _take_effect",
}


def functions() -> Iterator[tuple[str, ast.AST]]:
    """Every function that deletion is made of, by module and name."""
    for path in LOOKED_AT:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.stem}.{node.name}", node


def named(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The calls in a function, and what it hands to a thread: line and last name."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            for one in (each.func, *each.args[:1]):
                if isinstance(one, ast.Attribute) and ast.unparse(one) not in NONE:
                    yield one.lineno, one.attr
                elif isinstance(one, ast.Name):
                    yield one.lineno, one.id


def test_every_effect_lies_between_two_failpoints() -> None:
    unguarded, seen = [], set()
    for name, node in functions():
        calls = list(named(node))
        effects = [line for line, called in calls if called in EFFECTS]
        places = [line for line, called in calls if called in PASSED]
        if not effects:
            continue
        seen.add(name)
        if name in BETWEEN or name in ALONE:
            continue
        if not places or not min(places) < min(effects) <= max(effects) < max(places):
            unguarded.append(name)
    assert unguarded == []
    assert (BETWEEN.keys() | ALONE.keys()) - seen == set(), "no effect there any more"
    assert {each for pair in BETWEEN.values() for each in pair} <= set(FAILPOINTS)


def test_every_failpoint_is_passed_somewhere_and_listed() -> None:
    passed = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in PASSED:
                passed |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    assert passed == set(FAILPOINTS)


KILLS = {
    test_ingester_failpoints.test_killed_at: test_ingester_failpoints.PLACES,
    test_services.test_a_kill_in_a_write_is_harmless: test_services.PLACES,
    test_kills.test_a_kill_loses_nothing_and_leaves_nothing: test_kills.PLACES,
    kills_beside_holds.test_a_kill_loses_nothing_and_leaves_nothing: kills_beside_holds.PLACES,
    test_edits_and_erasures.test_a_crash_between_blob_and_rows_leaves_no_orphan: (
        test_edits_and_erasures.PLACES
    ),
    test_rebuild.test_a_rebuild_that_is_killed_goes_on: test_rebuild.PLACES,
    test_orphans.test_a_kill_leaves_one_true_certificate: test_orphans.PLACES,
}


def test_every_failpoint_is_met_by_a_kill() -> None:
    """In `make test`, and with processes started cold in `make faults`: both run these tests."""
    assert set(FAILPOINTS) == {place for places in KILLS.values() for place in places}
    for test in KILLS:
        marks = {mark.name for mark in getattr(test, "pytestmark", ())}
        assert "kills" in marks, f"{test.__module__}.{test.__name__} is not marked `kills`"
        assert "faults" not in marks, f"{test.__name__} would be left out of `make test`"
