"""The table of task types."""

from inference_store.inference.task_types import TASK_TYPES, Prediction, task_type_of

NAMES = {
    "image_classification",
    "object_detection",
    "oriented_object_detection",
    "image_segmentation",
    "keypoint_detection",
    "image_text_to_text",
    "text_classification",
    "token_classification",
    "text_generation",
    "question_answering",
    "tabular",
    "unknown",
}


def test_every_task_type_is_there_under_its_own_name() -> None:
    assert set(TASK_TYPES) == NAMES
    assert all(name == entry.name for name, entry in TASK_TYPES.items())


def test_columns_are_columns_of_a_prediction() -> None:
    for entry in TASK_TYPES.values():
        assert set(entry.columns) <= set(Prediction._fields)
        assert (entry.read is None) == (entry.name == "unknown")


def test_any_spelling() -> None:
    for name in sorted(NAMES):
        for spelling in (
            name,
            name.upper(),
            name.replace("_", "-"),
            name.replace("_", " ").title(),
        ):
            assert task_type_of(spelling).name == name


def test_reads_other_names() -> None:
    for spelling, name in (
        ("ImageText2Text", "image_text_to_text"),
        ("sentiment-analysis", "text_classification"),
        ("summarization", "text_generation"),
        ("ner", "token_classification"),
        (None, "unknown"),
        ("", "unknown"),
        ("astrology", "unknown"),
        ("\ud800", "unknown"),
    ):
        assert task_type_of(spelling).name == name


def test_accepted_names_are_plain_and_belong_to_one_type() -> None:
    accepted = [name for entry in TASK_TYPES.values() for name in (entry.name, *entry.accepted)]
    assert len(accepted) == len(set(accepted))
    assert all(task_type_of(name).name in NAMES - {"unknown"} for name in accepted[:-1])


def test_vision_types_have_one_datum_an_input() -> None:
    assert {entry.name for entry in TASK_TYPES.values() if entry.vision} == {
        "image_classification",
        "object_detection",
        "oriented_object_detection",
        "image_segmentation",
        "keypoint_detection",
    }
