"""Notebooks are written as ``NN_name.py`` (percent cells, reviewable); this runs them into ``.ipynb`` with outputs.

``python notebooks/sync.py [05 …]`` writes all, or those whose names begin so; ``--check`` fails when a notebook's cells
are not its ``.py``'s, or lack outputs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def sources(names: Sequence[str] = ("",)) -> list[Path]:
    return sorted(path for path in HERE.glob("[0-9][0-9]_*.py") if path.name.startswith(tuple(names)))


def from_script(script: Path) -> nbformat.NotebookNode:
    notebook = jupytext.read(script)
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:02d}"  # stable, so that a rerun changes outputs only
        cell["metadata"] = {}
    return notebook


def write(script: Path) -> None:
    notebook = from_script(script)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}).execute()
    for cell in notebook.cells:
        cell["metadata"] = {}  # no time stamps
    nbformat.write(notebook, script.with_suffix(".ipynb"))
    print(f"{script.with_suffix('.ipynb').name}: {len(notebook.cells)} cells")


def problems(script: Path) -> list[str]:
    path = script.with_suffix(".ipynb")
    if not path.is_file():
        return [f"{path.name} is missing: run make notebooks"]
    written, wanted = nbformat.read(path, as_version=4), from_script(script)
    if [(c.cell_type, c.source) for c in written.cells] != [(c.cell_type, c.source) for c in wanted.cells]:
        return [f"{path.name} differs from {script.name}: run make notebooks"]
    if not any(c.get("outputs") for c in written.cells):
        return [f"{path.name} has no outputs: run make notebooks"]
    outputs = json.dumps([c.get("outputs") for c in written.cells])
    if "site-packages" in outputs or "Traceback" in outputs:
        return [f"{path.name} shows a warning or an error of the machine that ran it: mend it and run make notebooks"]
    return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="beginnings of names; default: all notebooks")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if not options.check:
        for script in sources(options.names or [""]):
            write(script)
        return 0
    found = [problem for script in sources() for problem in problems(script)]
    print("\n".join(found) or f"{len(sources())} notebooks in step with their scripts")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
