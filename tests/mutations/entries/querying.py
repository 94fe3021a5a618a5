"""Of questions: the language, its meaning, pages, counts, aggregates."""

from tests.mutations.mutant import Mutant

QUERYING = (
    Mutant(
        name="filter-numbers-by-float",
        promise="a number in a filter is exact",
        file="query/cql2/literals.py",
        old="value = exact(text, digits=CAPS.digits",
        new="value = exact(repr(float(text)), digits=CAPS.digits",
        command="unit",
        tests=("tests/unit/query/cql2",),
    ),
    Mutant(
        name="between-open",
        promise="BETWEEN includes its bounds",
        file="query/operators.py",
        old="operands[0] <= value <= operands[1]",
        new="operands[0] <= value < operands[1]",
        command="unit",
        tests=("tests/unit/query", "tests/unit/query/filters"),
    ),
    Mutant(
        name="not-null-is-true",
        promise="NOT of NULL is NULL",
        file="query/filters/evaluate.py",
        old="    return None if result is None else not result\n",
        new="    return not result\n",
        command="unit",
        tests=("tests/unit/query/filters",),
    ),
    Mutant(
        name="missing-key-matches",
        promise="`<>` and NOT do not match where the key is missing",
        file="query/conditions/comparisons.py",
        old="        return and_(self._some(scan_range, uid, hit=False), ~hit)\n",
        new="        return ~hit\n",
        command="integration",
        tests=("tests/integration/query/test_sql_agrees_with_evaluate.py",),
    ),
    Mutant(
        name="numbers-as-text",
        promise="numbers are compared as numbers",
        file="query/conditions/sides.py",
        old="        return COMPARISONS[op](self.sql, self.names.constant(constant))\n",
        new="""\
        sides = self.sql, self.names.constant(constant)
        if self.kind == "number":
            sides = cast(sides[0], TEXT), cast(sides[1], TEXT)
        return COMPARISONS[op](*sides)
""",
        command="integration",
        tests=("tests/integration/api/test_filters.py",),
    ),
    Mutant(
        name="unknown-key-is-empty",
        promise="an unknown key is refused, not silently empty",
        file="query/filters/names.py",
        old='        if checking.unknown_keys == "refuse":\n',
        new='        if checking.unknown_keys == "never":\n',
        command="unit",
        tests=("tests/unit/query/filters",),
    ),
    Mutant(
        name="page-skips-one",
        promise="the next page begins right behind the last one",
        file="query/pages.py",
        old="make_cursor(sort, fingerprint, result.hits[limit - 1])",
        new="make_cursor(sort, fingerprint, result.hits[limit])",
        command="integration",
        tests=(
            "tests/integration/query/test_pages.py",
            "tests/integration/api/test_inferences.py",
        ),
    ),
    Mutant(
        name="cursor-of-another-query",
        promise="a cursor works for its own query alone",
        file="query/cursor.py",
        old="    if raw[:_HASH_BYTES] != query:\n",
        new="    if not raw:\n",
        command="unit",
        tests=("tests/unit/query/test_cursor.py",),
    ),
    Mutant(
        name="marked-is-shown",
        promise="what is being erased shows nowhere",
        file="query/stored_counts.py",
        old="    return {piece: row for piece, row in stored.items() if piece not in marked}\n",
        new="    return {piece: row for piece, row in stored.items() if piece or marked}\n",
        command="integration",
        tests=("tests/integration/query/counting/test_counts.py",),
    ),
    Mutant(
        name="stored-count-stays",
        promise="a write outdates the stored counts of its span",
        file="query/stored_counts.py",
        old="        ~outdated,\n",
        new="",
        command="integration",
        tests=("tests/integration/query/counting/test_counts.py",),
    ),
    Mutant(
        name="count-begun-without-inserts",
        promise="a late event outdates the stored counts",
        file="query/counting/begin.py",
        old="AFTER INSERT OR DELETE OR UPDATE OF revision",
        new="AFTER DELETE OR UPDATE OF revision",
        command="integration",
        tests=("tests/integration/query/counting/test_counts.py",),
    ),
    Mutant(
        name="label-counted-twice",
        promise="an inference counts once in each label's group",
        file="query/aggregates/by_index.py",
        old='func.count(row.c.uid.distinct()).label("n"))\n        .where',
        new='func.count(row.c.uid).label("n"))\n        .where',
        command="integration",
        tests=(
            "tests/integration/query/aggregates/test_agrees_with_python.py",
            "tests/integration/query/counting",
        ),
    ),
    Mutant(
        name="days-in-utc",
        promise="a day is one of the time zone that was asked for",
        file="query/aggregates/buckets.py",
        old="local = at.astimezone(zone)",
        new="local = at.astimezone(UTC)",
        command="unit",
        tests=("tests/unit/query/aggregates/test_buckets.py",),
    ),
)
