"""Of deletion: what goes is gone, what is held stays, what was erased does not come back."""

from tests.mutations.mutant import Mutant

DELETING = (
    Mutant(
        name="older-versions-stay",
        promise="every version of an object goes",
        file="objects/deletion.py",
        old="""\
            versions = listed.get(bucket)
""",
        new="""\
            versions = listed.get(bucket)
            versions = versions and [version for version in versions if version.latest]
""",
        command="integration",
        tests=("tests/integration/objects/test_versions.py",),
    ),
    Mutant(
        name="not-listed-again",
        promise="what is deleted is listed again to see that it is gone",
        file="retention/objects.py",
        old="        remaining = await asyncio.to_thread(blobs.still_there, keys)\n",
        new="        remaining = []\n",
        command="integration",
        tests=("tests/integration/retention/test_locked_objects.py",),
    ),
    Mutant(
        name="rows-before-objects",
        promise="a crash leaves no object without a row that names it",
        file="retention/batch_eraser.py",
        old="""\
        async with self._list_objects(batch) as listed:
            deleted, faults = await erase_objects(self._engine, self._blobs, erasure, batch, listed)
        async with self._rows:
            await self._end_batch(erasure, batch, deleted, faults, whole_span=whole_span)
""",
        new="""\
        async with self._rows:
            await self._end_batch(erasure, batch, Deleted(), [], whole_span=whole_span)
        async with self._list_objects(batch) as listed:
            deleted, faults = await erase_objects(self._engine, self._blobs, erasure, batch, listed)
""",
        command="integration",
        tests=("tests/integration/retention/test_kills.py",),
    ),
    Mutant(
        name="hold-ignored",
        promise="nothing deletes what a hold keeps",
        file="erasure/mark/held_deletions.py",
        old="""\
    if not holds:
        return list(page)
""",
        new="""\
    if not in_progress:
        return list(page)
""",
        command="integration",
        tests=("tests/integration/retention/test_holds.py",),
    ),
    Mutant(
        name="holds-asked-before-the-fence",
        promise="a hold is placed before a claim or after it, never in between",
        file="retention/batch_claim.py",
        old="        await fence_exclusive(connection)\n",
        new="",
        command="integration",
        tests=(
            "tests/integration/retention/test_holds.py",
            "tests/integration/retention/test_holds_and_kills.py",
            "tests/integration/erasure/mark/test_fence.py",
        ),
    ),
    Mutant(
        name="null-does-not-protect",
        promise="a hold keeps what its filter cannot decide about",
        file="query/filters/saved.py",
        old="    return predicate is not False\n",
        new="    return predicate is True\n",
        command="unit",
        tests=("tests/unit/query/filters/test_saved.py",),
    ),
    Mutant(
        name="shared-object-goes",
        promise="an object that others point to stays",
        file="erasure/mark/claims.py",
        old="frozenset(key for key in doomed if key not in shared and key not in owned)",
        new="frozenset(key for key in doomed if key not in owned)",
        command="integration",
        tests=("tests/integration/retention/test_erasures.py",),
    ),
    Mutant(
        name="no-tombstone",
        promise="what was erased does not come back with a late event",
        file="erasure/delete/rows.py",
        old='    elif stored_erasure.cause != "expired_arrival":\n',
        new='    elif stored_erasure.cause == "expired_arrival":\n',
        command="integration",
        tests=("tests/integration/ingester", "-k", "erased_again or expired"),
    ),
    Mutant(
        name="dropped-span-forgotten",
        promise="what went with a whole partition does not come back either",
        file="erasure/mark/tombstones.py",
        old="            erased |= await _find_listed(connection, model, row.lo, unknown)\n",
        new="            erased |= set() if unknown else erased\n",
        command="integration",
        tests=("tests/integration/retention/test_runs.py",),
    ),
    Mutant(
        name="request-survives-its-input",
        promise="an input goes with the rest of its request",
        file="retention/objects.py",
        old='        if erasure.scope == "input":\n',
        new='        if erasure.scope == "none":\n',
        command="integration",
        tests=("tests/integration/retention/test_runs.py",),
    ),
    Mutant(
        name="prompts-survive-their-input",
        promise="prompts go with the input",
        file="erasure/delete/rows.py",
        old="    await connection.execute(prompts.values(prompt=None))\n",
        new="",
        command="integration",
        tests=("tests/integration/retention", "-k", "input"),
    ),
    Mutant(
        name="months-of-30-days",
        promise="months go by the calendar",
        file="erasure/policies/durations.py",
        old="    return Duration(years * 12 + months, exact)\n",
        new="    return Duration(0, exact + timedelta(days=30 * (years * 12 + months)))\n",
        command="unit",
        tests=("tests/unit/erasure/policies/test_durations.py",),
    ),
    Mutant(
        name="null-deletes",
        promise="a rule does not delete what its filter cannot decide about",
        file="query/filters/saved.py",
        old="    return predicate is True\n",
        new="    return predicate is not False\n",
        command="unit",
        tests=("tests/unit/query/filters/test_saved.py", "tests/unit/erasure"),
    ),
    Mutant(
        name="minimum-age-undercut",
        promise="no rule takes what is younger than the minimum age",
        file="erasure/policies/effective_policy.py",
        old="    return None if duration is None else min([duration.before(now), *least])\n",
        new="    return None if duration is None else max([duration.before(now), *least])\n",
        command="unit",
        tests=("tests/unit/erasure/policies/test_effective_policy.py",),
    ),
    Mutant(
        name="cancelled-too-late",
        promise="an erasure that has begun to delete is not cancelled",
        file="erasure/request/cancellation.py",
        old="here.deleting_since.is_(None), here.state.in_(_NOT_YET))",
        new='here.state.in_((*_NOT_YET, "deleting_objects")))',
        command="integration",
        tests=("tests/integration/api/test_erased_asides.py",),
    ),
    Mutant(
        name="edit-ends-a-hold",
        promise="an edit does not end a hold's match",
        file="api/metadata_edits/hold_check.py",
        old="    if ended:\n",
        new="    if ended and not keeping:\n",
        command="integration",
        tests=("tests/integration/api/test_held_edits.py",),
    ),
    Mutant(
        name="young-orphan-judged",
        promise="an object whose event may still come is no orphan",
        file="operations/reconcile/judgement.py",
        old="return before is not None and modified_at.astimezone(UTC) < before",
        new="return before is not None",
        command="integration",
        tests=(
            "tests/integration/operations/reconcile/test_awaited.py",
            "tests/integration/operations/reconcile/test_comparing.py",
        ),
    ),
)
