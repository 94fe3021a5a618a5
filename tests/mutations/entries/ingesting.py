"""Of the ingester: nothing is lost or doubled, the books close, a bad message stops nothing."""

from tests.mutations.mutant import Mutant

INGESTING = (
    Mutant(
        name="batch-loses-one",
        promise="every event of a batch is stored",
        file="ingester/write/writer.py",
        old="indexing.write(connection, [rows for _, rows in pairs])",
        new="indexing.write(connection, [rows for _, rows in pairs[1:] or pairs])",
        command="integration",
        tests=("tests/integration/ingester/test_pipeline.py",),
    ),
    Mutant(
        name="twice-in-a-batch",
        promise="an event that Kafka repeats is stored once, and a duplicate in the books",
        file="ingester/arrivals.py",
        old="        if item.identity in identities_in_batch:\n",
        new="        if item.identity in identities_in_batch and gone:\n",
        command="integration",
        tests=("tests/e2e/faults/test_ingester_failpoints.py",),
    ),
    Mutant(
        name="repeat-writes-children",
        promise="a redelivery does not touch the inference that is there",
        file="index/writing/write.py",
        old="fresh = batch if whole else [rows for rows in batch if (rows.model, rows.uid) in new]",
        new="fresh = batch",
        command="integration",
        tests=("tests/integration/ingester/test_pipeline.py",),
    ),
    Mutant(
        name="rows-before-offsets",
        promise="rows and offsets are one transaction",
        file="ingester/write/writer.py",
        old="            await within_limit(connection, settled)\n",
        new="        async with self._engine.begin() as connection:\n"
        "            await within_limit(connection, settled)\n",
        command="integration",
        tests=("tests/e2e/faults/test_ingester_failpoints.py",),
    ),
    Mutant(
        name="books-skip-duplicates",
        promise="each offset is counted as what became of it",
        file="index/accounting/offsets.py",
        old="        if count\n    }",
        new="        if count and outcome is not Outcome.DUPLICATE\n    }",
        command="integration",
        tests=("tests/integration/ingester/test_pipeline.py",),
    ),
    Mutant(
        name="books-not-fenced",
        promise="of two consumers of a partition one writes",
        file="index/accounting/offsets.py",
        old="    if await connection.scalar(query) != lo:\n",
        new="    if await connection.scalar(query) is None:\n",
        command="integration",
        tests=("tests/integration/index/accounting/test_accounting.py",),
    ),
    Mutant(
        name="books-move-back",
        promise="the next offset moves only from where it is",
        file="index/accounting/offsets.py",
        old="        .where(_match(partition_id), kafka_partition.c.next == lo)\n",
        new="        .where(_match(partition_id))\n",
        command="integration",
        tests=("tests/integration/index/accounting/test_moving_offsets.py",),
    ),
    Mutant(
        name="books-need-not-close",
        promise="an offset that nothing became of is refused by the books",
        file="index/accounting/offsets.py",
        old="    if sum(outcomes.values()) != hi - lo:\n",
        new="    if sum(outcomes.values()) > hi - lo:\n",
        command="integration",
        tests=("tests/integration/index/accounting/test_moving_offsets.py",),
    ),
    Mutant(
        name="lost-offsets-unnamed",
        promise="offsets that the log dropped unread are named as lost",
        file="ingester/positions.py",
        old="            lost = max(0, min(begins, first) - lo)\n",
        new="            lost = 0\n",
        command="integration",
        tests=("tests/integration/ingester/test_cut_log.py",),
    ),
    Mutant(
        name="reads-aborted",
        promise="what a producer has aborted is not read",
        file="ingester/kafka_consumer.py",
        old='isolation_level="read_committed"',
        new='isolation_level="read_uncommitted"',
        command="integration",
        tests=("tests/integration/ingester/test_odd_traffic.py",),
    ),
    Mutant(
        name="new-topic-unnoticed",
        promise="a recreated topic is a new epoch",
        file="ingester/positions.py",
        old="        if hash_record(_build_record(partition_id, record)) != hash:\n",
        new="        if not hash:\n",
        command="integration",
        tests=(
            "tests/integration/ingester/test_recreated_topic.py",
            "tests/integration/ingester/test_odd_traffic.py",
        ),
    ),
    Mutant(
        name="dead-letter-without-payload",
        promise="a dead letter keeps its bytes",
        file="index/dead_letters.py",
        old=(
            "        rows = [{**record.values, **rejection.values}"
            " for record, rejection in letters]\n"
        ),
        new="""\
        rows = [
            {**record.values, **rejection.values, "payload": b""}
            for record, rejection in letters
        ]
""",
        command="integration",
        tests=(
            "tests/integration/api/test_dead_letters.py",
            "tests/integration/ingester/test_odd_traffic.py",
        ),
    ),
    Mutant(
        name="redrive-not-booked",
        promise="a redrive moves the offset's state in the books",
        file="ingester/retry.py",
        old="        _move(changes, letter.record, Outcome.DEAD, outcome)\n",
        new="",
        command="integration",
        tests=("tests/integration/ingester/test_odd_traffic.py",),
    ),
    Mutant(
        name="no-dead-letter-limit",
        promise="too many bad messages stop the line",
        file="ingester/limit.py",
        old="            self._halt(counts)\n",
        new="            self.reason = None\n",
        command="integration",
        tests=("tests/integration/ingester/test_dead_letter_limit.py",),
    ),
    Mutant(
        name="hold-ignored-on-arrival",
        promise="what a hold keeps does not expire as it arrives",
        file="ingester/arrivals.py",
        old="        if gone and _held(in_force, read, item, now):\n",
        new="        if gone and not item:\n",
        command="integration",
        tests=("tests/integration/ingester/test_held_arrivals.py",),
    ),
    Mutant(
        name="repeats-counted-by-key",
        promise="the key registry counts an inference once",
        file="ingester/write/writer.py",
        old="if outcome is Outcome.STORED]\n        await indexing.write_deltas",
        new="if outcome]\n        await indexing.write_deltas",
        command="integration",
        tests=("tests/e2e/faults/test_ingester_failpoints.py",),
    ),
)
