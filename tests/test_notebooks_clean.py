"""Notebooks are their own source: git has no outputs, and their metadata is what the tests and CI go by."""

from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
FIRST = FOLDER / "00_start_here.ipynb"
NOTEBOOKS = sorted({FIRST, *(p for p in FOLDER.rglob("*.ipynb") if ".ipynb_checkpoints" not in p.parts)})


def faults(notebook):
    """What is wrong with a notebook as it lies in git, one line each."""
    found = []
    for i, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and (cell.outputs or cell.execution_count is not None):
            found.append(f"cell {i} has outputs or an execution count: clear all outputs before you commit")
    meta = notebook.metadata
    if meta.get("kernelspec", {}).get("name") != "python3":
        found.append("metadata.kernelspec.name is not python3, the kernel of the course's environment")
    runs = meta.get("ddp_lab", {}).get("runs")
    if type(runs) is not int or runs < 0:
        found.append(f"metadata.ddp_lab.runs is {runs!r}, not the number of runs that the notebook starts")
    timeout = meta.get("execution", {}).get("timeout")
    # A run's own clock, 120 s unless a cell sets it, must come first: it says where each rank stood.
    if type(timeout) not in (int, float) or not timeout >= 150:
        found.append(f"metadata.execution.timeout is {timeout!r}, not a cell's time limit of 150 seconds or more")
    return found


def clean():
    cell = nbformat.v4.new_code_cell("1 + 1")
    kernel = {"name": "python3", "display_name": "Python 3"}
    meta = {"kernelspec": kernel, "ddp_lab": {"runs": 0}, "execution": {"timeout": 150}}
    return nbformat.v4.new_notebook(cells=[cell], metadata=meta)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_clean(path):
    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert faults(notebook) == []


def test_a_clean_notebook_has_no_faults():
    assert faults(clean()) == []


def test_an_output_an_execution_count_and_missing_metadata_are_faults():
    notebook = clean()
    notebook.cells[0].outputs = [nbformat.v4.new_output("stream", text="2")]
    assert "cell 0" in faults(notebook)[0]

    notebook = clean()
    notebook.cells[0].execution_count = 1
    assert "cell 0" in faults(notebook)[0]

    notebook = clean()
    notebook.metadata = {"ddp_lab": {"runs": "3"}, "execution": {"timeout": 120}}
    assert [line.split()[0] for line in faults(notebook)] == [
        "metadata.kernelspec.name", "metadata.ddp_lab.runs", "metadata.execution.timeout"]
