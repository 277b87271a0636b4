"""What is said of a notebook that has passed without doing what it is for."""

import nbformat
from hollow import complaints


def _notebook(runs, *solutions):
    cells = [nbformat.v4.new_code_cell(text, metadata={"tags": ["solution"]}) for text in solutions]
    return nbformat.v4.new_notebook(cells=cells, metadata={"ddp_lab": {"runs": runs}})


def _run(**changes):
    return {"event": "run", "script": "x.py", "nproc": 2, "ranks": 2, "outcome": "ok"} | changes


def test_a_run_that_was_not_started_is_missed():
    assert complaints(_notebook(1), [_run()]) == []
    assert "0 runs" in complaints(_notebook(1), [])[0]


def test_a_run_that_was_skipped_by_name_is_counted_as_skipped():
    skip = {"event": "skip", "script": "faults/all_on_gpu0", "why": "needs 2 GPUs"}
    assert complaints(_notebook(2), [_run(), skip]) == []
    assert "1 runs were started and 1 skipped, its metadata says 3" in complaints(_notebook(3), [_run(), skip])[0]


def test_a_silent_rank_of_a_good_run_is_noticed_and_of_a_failed_one_is_not():
    assert "only 1 of 2" in complaints(_notebook(1), [_run(ranks=1)])[0]
    assert complaints(_notebook(1), [_run(ranks=1, outcome="expected")]) == []


def test_a_solution_that_was_not_found_right_is_missed():
    solution = 'assert lab.check("00.1", answer).done'
    right = {"event": "check", "exercise": "00.1", "done": True}
    assert complaints(_notebook(0, solution), [right]) == []
    assert complaints(_notebook(0, solution), [right | {"done": False}]) != []
