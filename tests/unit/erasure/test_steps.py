"""The room of erasures says in which order its folders take part in an erasure."""

from pathlib import Path

from inference_store import erasure

ROOM = Path(str(erasure.__file__)).parent


def test_every_folder_and_module_is_named_in_the_order_of_steps() -> None:
    modules = {path.stem for path in ROOM.glob("*.py")} - {"__init__"}
    # a folder without modules is what an older checkout has left
    names = modules | {path.parent.name for path in ROOM.glob("*/*.py")}
    text = erasure.__doc__ or ""
    steps = {line.split()[0] for line in text.split("\n\n")[1].splitlines()}
    others = {word.strip("`") for word in text.split() if word.startswith("`")}
    assert steps | others == names
    assert not steps & others
