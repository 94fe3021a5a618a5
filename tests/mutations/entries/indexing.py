"""Of what is read from strangers: events, metadata, responses."""

from tests.mutations.mutant import Mutant

INDEXING = (
    Mutant(
        name="time-rounded",
        promise="times are floored to microseconds",
        file="inference/events/instants.py",
        old="""\
            at = datetime.fromisoformat(text)
            return None""",
        new="""\
            at = datetime.fromisoformat(text)
            if text[26:27] >= "5":
                at += timedelta(microseconds=1)
            return None""",
        command="unit",
        tests=("tests/unit/inference/events/test_instants.py",),
    ),
    Mutant(
        name="uid-without-lengths",
        promise="two events that differ have two uids",
        file="inference/events/uid.py",
        old='        digest.update(len(encoded).to_bytes(4, "big"))\n',
        new="",
        command="unit",
        tests=("tests/unit/inference/events/test_uid.py",),
    ),
    Mutant(
        name="any-bucket",
        promise="an event cannot make us read a bucket that is not allowed",
        file="inference/events/storage_key.py",
        old="if bucket != self.default and bucket not in self.allowed:",
        new="if not bucket:",
        command="unit",
        tests=("tests/unit/inference/events",),
    ),
    Mutant(
        name="first-duplicate-wins",
        promise="of a key that comes twice the last value wins",
        file="inference/metadata/metadata_reading.py",
        old='by_name[name] = item._replace(flags=(*item.flags, "duplicate_key"))',
        new='by_name[name] = by_name[name]._replace(flags=(*item.flags, "duplicate_key"))',
        command="unit",
        tests=("tests/unit/inference/metadata",),
    ),
    Mutant(
        name="unparsed-value-dropped",
        promise="a value that is none of its type is found as text",
        file="inference/metadata/typed_items.py",
        old='self.leaves.append(Leaf(name, kind.type, "string", text, (flag, "untyped")))',
        new="pass",
        command="unit",
        tests=("tests/unit/inference/metadata",),
    ),
    Mutant(
        name="numbers-by-float",
        promise="numbers are exact",
        file="inference/metadata/values.py",
        old="value = exact(text, digits=caps.digits",
        new="value = exact(repr(float(text)), digits=caps.digits",
        command="unit",
        tests=("tests/unit/inference/metadata",),
    ),
    Mutant(
        name="legacy-box-unturned",
        promise="`detection_boxes` is [ymin, xmin, ymax, xmax]",
        file="inference/task_types/detection.py",
        old="        return b, a, d, c\n",
        new="        return a, b, c, d\n",
        command="unit",
        tests=("tests/unit/inference/task_types",),
    ),
    Mutant(
        name="failed-has-none",
        promise="the predictions of a failed request are unknown, not none",
        file="inference/task_types/response.py",
        old='return Predictions(None, ("response_failed",))',
        new='return Predictions((), ("response_failed",))',
        command="unit",
        tests=("tests/unit/inference/task_types",),
    ),
    Mutant(
        name="top-label-of-the-first",
        promise="`top_label` is that of the highest score",
        file="index/writing/rows.py",
        old="        if item.rank == 1:\n",
        new="        if item.ordinal == 0:\n",
        command="integration",
        tests=("tests/integration/ingester/test_pipeline.py",),
    ),
)
