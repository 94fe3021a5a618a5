"""Train the digits' classifier and generate the code of OMI's messages: prepare.py PROTO FOLDER."""

import sys
from pathlib import Path

import joblib
from grpc_tools import protoc
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def main(proto: Path, folder: Path) -> int:
    _train(folder / "models" / "digits.joblib")
    return _generate(proto, folder / "generated")


def _train(target: Path) -> None:
    """64 pixels, 0 to 16, to one of ten digits; every fifth image is left out."""
    target.parent.mkdir()
    images, labels = load_digits(return_X_y=True)
    seen = [number for number in range(len(labels)) if number % 5]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    joblib.dump(model.fit(images[seen], labels[seen]), target)


def _generate(proto: Path, target: Path) -> int:
    target.mkdir()
    outputs = (f"--python_out={target}", f"--grpc_python_out={target}")
    return int(protoc.main(["protoc", f"-I{proto.parent}", *outputs, str(proto)]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
