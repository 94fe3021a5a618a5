"""Runs the notebook of the examples beside a demo, and checks what its cells show."""

import ast
import json
from pathlib import Path

from inference_store_client import Store, predicted, prediction
from tests.readers.environment import read

NOTEBOOK = Path(__file__).parents[2] / "examples" / "hard_examples.ipynb"


def run(api: str, folder: Path) -> None:
    """Run each cell in a folder. Raise AssertionError if one fails or shows something else."""
    (folder / "hard-faces").mkdir(parents=True)  # of an earlier run
    shown = read("run_notebook.py", str(NOTEBOOK), api, home=folder, folder=folder)
    with Store(api) as store:
        unsure = store.model("face-detector").inferences(
            prediction(predicted.score < 0.4, label="face")
        )
        uids = {str(inference.uid) for inference in unsure.stream()}
    assert int(shown["unsure"]) == len(uids) > 10
    assert int(shown["hallway"]) > 0
    assert len(ast.literal_eval(shown["scores"])) == 3
    counts = ast.literal_eval(shown["photographs"]).values()
    assert sum(int(count.split(" of ")[0]) for count in counts) == len(uids)
    assert shown["look"].count("<image ") == 12
    assert shown["look"].count("<rect ") >= 12
    assert f"hard-faces: {len(uids)} pictures of {len(uids)} inferences" in shown["export"]
    coco = json.loads((folder / "hard-faces" / "annotations.json").read_text())
    assert {image["uid"] for image in coco["images"]} == uids
    assert [category["name"] for category in coco["categories"]] == ["face"]
    assert min(annotation["score"] for annotation in coco["annotations"]) < 0.4
