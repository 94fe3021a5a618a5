"""Run a notebook in the folder that is current: run_notebook.py NOTEBOOK URL.

Prints what each cell shows, as JSON by the cell's id: texts, and HTML if it shows some.
"""

import json
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

_SECONDS = 120


def main(notebook: str, url: str) -> None:
    """Run the notebook against the api at a URL. Raises CellExecutionError."""
    text = Path(notebook).read_text().replace("http://127.0.0.1:8080", url)
    document = nbformat.reads(text, as_version=4)
    nbformat.validate(document)
    NotebookClient(document, timeout=_SECONDS, kernel_name="python3").execute()
    cells = [cell for cell in document.cells if cell.cell_type == "code"]
    print(json.dumps({cell.id: "".join(map(_read_output, cell.outputs)) for cell in cells}))


def _read_output(output: Any) -> str:
    if output.output_type == "stream":
        return str(output.text)
    data = output.data
    return str(data.get("text/html") or data.get("text/plain"))


if __name__ == "__main__":
    main(*sys.argv[1:])
