"""Nothing passes hollow: the ledger of this session has every run and every checked solution of every notebook."""

import json
import os
from collections import Counter
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).resolve().parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))


def complaints(notebook, events):
    """What the ledger's events of a notebook lack, one line each.

    `notebook`: as nbformat reads it; `events`: dicts, as ddp_lab.launch.ledger writes them.
    """
    found = []
    runs = [event for event in events if event["event"] == "run"]
    checks = Counter(event["exercise"] for event in events if event["event"] == "check" and event["done"])
    stated = notebook.metadata.ddp_lab.runs
    if len(runs) != stated:
        found.append(f"{len(runs)} runs were started, its metadata says {stated}")
    for run in runs:
        if run["outcome"] == "ok" and run["ranks"] != run["nproc"]:
            found.append(f"{run['script']} ended well, but only {run['ranks']} of {run['nproc']} ranks said anything")
    hidden = [cell.source for cell in notebook.cells if "solution" in cell.metadata.get("tags", [])]
    solutions = sum("lab.check(" in source for source in hidden)
    if sum(checks.values()) < solutions:
        found.append(f"{solutions} solutions are checked in it, {sum(checks.values())} were found right")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_every_run_and_solution_of_the_notebook_happened(path, request):
    if not any(item.path == path for item in request.session.items):
        pytest.skip(f"{path.name} was not run in this session")
    ledger = Path(os.environ["DDP_LAB_LEDGER"])
    events = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert complaints(nbformat.read(path, 4), [e for e in events if e["notebook"] == path.stem]) == []


def _notebook(runs, *solutions):
    cells = [nbformat.v4.new_code_cell(text, metadata={"tags": ["solution"]}) for text in solutions]
    return nbformat.v4.new_notebook(cells=cells, metadata={"ddp_lab": {"runs": runs}})


def _run(**changes):
    return {"event": "run", "script": "x.py", "nproc": 2, "ranks": 2, "outcome": "ok"} | changes


def test_a_run_that_was_not_started_is_missed():
    assert complaints(_notebook(1), [_run()]) == []
    assert "0 runs" in complaints(_notebook(1), [])[0]


def test_a_silent_rank_of_a_good_run_is_noticed_and_of_a_failed_one_is_not():
    assert "only 1 of 2" in complaints(_notebook(1), [_run(ranks=1)])[0]
    assert complaints(_notebook(1), [_run(ranks=1, outcome="expected")]) == []


def test_a_solution_that_was_not_found_right_is_missed():
    solution = 'assert lab.check("00.1", answer).done'
    right = {"event": "check", "exercise": "00.1", "done": True}
    assert complaints(_notebook(0, solution), [right]) == []
    assert complaints(_notebook(0, solution), [right | {"done": False}]) != []
