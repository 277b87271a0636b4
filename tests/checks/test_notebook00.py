"""checks of notebook 00: done only for what the task asks, and for each typical mistake a hint of its own."""

import os
from pathlib import Path

import pytest
from answering import early_exit, hint, made_up_run, squares

import ddp_lab as lab
from ddp_lab.launch.failures import HangError

WRONG_SQUARES = {
    "starter unchanged": (made_up_run([[{"mine": 1.0, "total": 3.0}], [{"mine": 2.0, "total": 3.0}]]), "--nproc 3"),
    "starter on 3 ranks": (squares((1.0, 2.0, 3.0), (6.0,) * 3), "square"),
    "total hard-coded, no contribution": (made_up_run([[{"total": 14}]] * 3), "mine"),
    "total alone on rank 0": (made_up_run([[{"mine": 1, "total": 14}], [], []]), "ranks 1, 2 logged no number as mine"),
    "two ranks": (made_up_run([[{"mine": 1, "total": 5}], [{"mine": 4, "total": 5}]]), "2 ranks"),
    "rank squared": (squares((0, 1, 4), (5,) * 3), "rank 0 adds 0"),
    "no all_reduce": (squares(total=(1, 4, 9)), "nothing was added up"),
    "reduce": (squares(total=(14, 13, 9)), "ranks 1, 2 did not get the sum"),
    "mean": (squares(total=(4.6666665,) * 3), "mean"),
    "product": (squares(total=(36,) * 3), "36, not 14: not a plain sum of 1, 4 and 9. Look at what changes total"),
    "maximum": (squares(total=(9.0,) * 3), "9, not 14: "),
    "minimum": (squares(total=(1.0,) * 3), "1, not 14: "),
    "added to its own": (squares(total=(15, 18, 23)), "15, not 14: "),
    "zeros reduced": (squares(total=(0, 0, 0)), "0, not 14: "),
    "nan in total": (squares(total=(float("nan"),) * 3), "nan, not 14: "),
    "copied before squared": (squares(total=(6,) * 3), "total holds rank + 1"),
    "reduced twice": (squares(total=(42,) * 3), "Call all_reduce once"),
    "result of all_reduce": (
        squares(total=(None,) * 3),
        "total is None: all_reduce returns nothing, it changes its arg",
    ),
    "result as mine": (squares(mine=(None,) * 3), "mine is None: all_reduce returns nothing"),
    "mine reduced": (
        squares((14,) * 3, (1, 4, 9)),
        "mine is 14, the sum: all_reduce works in place. Reduce the copy, to",
    ),
    "mine reduced, no squares": (squares((6.0,) * 3, (1.0, 2.0, 3.0)), "mine is 6, the sum: all_reduce works in place"),
    "no copy": (squares((14,) * 3), "mine is 14, the sum: all_reduce works in place. Make total a copy"),
    "only total squared": (squares((1, 2, 3)), "14 is right, but mine is logged as rank + 1"),
    "mine not logged": (made_up_run([[{"total": 14}]] * 3), "ranks 0, 1, 2 logged no number as mine"),
    "gathered": (squares(total=([1, 4, 9],) * 3), "rank 0 logged '[1, 4, 9]' as total, a list. It is to be one number"),
    "none on one rank": (squares(total=(14, None, 14)), "rank 1 logged 'None' as total, nothing"),
    "texts": (made_up_run([[{"mine": "1", "total": "14"}]] * 3), "rank 0 logged '1' as mine, a str"),
    "one rank": (made_up_run([[{"mine": 1, "total": 1}]]), "the run had 1 rank. Write --nproc 3"),
    "the answer to 00.2": ({"run": 1, "rank": 0, "collective": "barrier", "line": 3}, "Run your cell of 00.1 again"),
    "an int": (14, "the answer is an int, not a run"),
    "left open": (None, "the answer is nothing, not a run"),
    "a hang": (squares(error=HangError("no sign of life", where=[{"rank": 0}])), "the run hung. What one rank calls"),
    "failed without a word": (squares(error=RuntimeError()), "the run failed (RuntimeError)"),
    "nan": (squares((float("nan"), 4, 9)), "rank 0 adds nan"),
    "failed run": (squares(error=RuntimeError("rank 1 failed\nmore")), "Mend that first"),
}


@pytest.mark.parametrize("mistake", WRONG_SQUARES)
def test_each_wrong_sum_has_its_own_hint(mistake):
    run, expected = WRONG_SQUARES[mistake]
    assert expected in hint("00.1", run)


def written(folder, *lines):
    """The folder, with a cell of these lines that ends as the exercise's cell does."""
    (folder / "cell.py").write_text("\n".join([*lines, "dist.barrier()  # leave together", ""]))
    return folder


LOG = "worker.log(mine=mine, total=total)"
SEEN_IN_THE_SCRIPT = {
    "logged too early": ([LOG, "dist.all_reduce(total)"], {"total": (1, 4, 9)}, "after worker.log. Log afterwards."),
    "zeros logged too early": ([LOG, "dist.all_reduce(total)"], {"total": (0,) * 3}, "Log afterwards."),
    "a copy reduced": (["dist.all_reduce(mine.clone())", LOG], {"total": (1, 4, 9)}, "only what it is given"),
    "logged by a function": (
        ["def report():", f"    {LOG}", "dist.all_reduce(mine.clone())", "report()"],
        {"total": (1, 4, 9)},
        "only what it is given",
    ),
    "not waited for": (["dist.all_reduce(total, async_op=True)", LOG], {"total": (1, 4, 9)}, "Leave async_op out"),
    "a barrier alone": ([LOG], {"total": (1, 4, 9)}, "nothing was added up"),
    "a barrier's result": (["total = dist.barrier()", LOG], {"total": (None,) * 3}, "rank 0 logged 'None' as total"),
    "reduce's result": (["total = dist.reduce(total, 0)", LOG], {"total": (None,) * 3}, "reduce returns nothing"),
    "14 written down": (["# all_reduce", "worker.log(mine=mine, total=14)"], {}, "no all_reduce in the script"),
    "14 sent by one rank": (["dist.broadcast(total, 0)", LOG], {}, "no all_reduce in the script"),
    "mine written down": (["worker.log(mine=14, total=14)"], {"mine": (14,) * 3}, "rank 0 adds 14"),
    "power before sum": (
        ["mine = torch.tensor(dist.get_rank() + 1.0 ** 2)", "dist.all_reduce(total)", LOG],
        {"mine": (1, 2, 3), "total": (6,) * 3},
        "`**` comes before `+`",
    ),
    "total alone squared": (
        ["total = mine.clone() ** 2", LOG],
        {"mine": (1, 2, 3), "total": (1, 4, 9)},
        "It is to add the square of that",
    ),
}


@pytest.mark.parametrize("mistake", SEEN_IN_THE_SCRIPT)
def test_the_script_tells_wrong_sums_apart(mistake, tmp_path):
    lines, logged, expected = SEEN_IN_THE_SCRIPT[mistake]
    assert expected in hint("00.1", squares(**logged, folder=written(tmp_path, *lines)))


@pytest.mark.parametrize("script", ["what is no Python", "\0"])
def test_a_script_that_cannot_be_read_is_no_mistake(script, tmp_path):
    (tmp_path / "cell.py").write_text(script)
    assert lab.check("00.1", squares(folder=tmp_path)).done


@pytest.mark.parametrize(
    "call", ["dist.all_reduce(total)", "dist.all_gather(parts, mine)", "dist.reduce(total, 0)", "dist.recv(total, 0)"]
)
def test_every_way_to_the_sum_is_right(call, tmp_path):
    assert lab.check("00.1", squares(folder=written(tmp_path, call, LOG))).done


def test_tensors_of_one_number_count_as_numbers():
    assert lab.check("00.1", squares(([1.0], [4.0], [9.0]), ([14.0],) * 3)).done


RIGHT = {"rank": 0, "collective": "barrier", "line": 38}
WRONG_READINGS = {
    "starter unchanged": ({"rank": None, "collective": None, "line": None}, "rank is still open"),
    "one thing left open": (RIGHT | {"line": ...}, "line is still open"),
    "the rank that waits in backward": ({"rank": 1, "collective": "backward", "line": 31}, "not the one that left"),
    "the other's call": (RIGHT | {"collective": "backward (bucket all_reduce)"}, "waiting in"),
    "the other's line": (RIGHT | {"line": 31}, "where"),
    "the column beside it": (RIGHT | {"collective": "main"}, "does not wait in main. Read its row, under `waiting in`"),
    "the whole report": (RIGHT | {"collective": "rank  where\n0  x.py:38"}, "Read its row"),
    "words for numbers": (RIGHT | {"rank": "zero"}, "rank: only the number at the start of its row."),
    "rank and number": (RIGHT | {"rank": "rank 0"}, "rank: only the number"),
    "file and line": (RIGHT | {"line": "early_exit_one_rank.py:38"}, "line: only the number behind the colon."),
    "a list": (RIGHT | {"line": [38]}, "line: only the number"),
    "half a line": (RIGHT | {"line": 38.5}, "line: only the number"),
    "endless": (RIGHT | {"rank": float("inf")}, "rank: only the number"),
    "no run": (RIGHT | {"run": None}, "`run` is the run of the cell above: `stuck`."),
    "run left open": (RIGHT | {"run": ...}, "`run` is the run of the cell above: `stuck`."),
    "the run's name": (
        RIGHT | {"run": "stuck"},
        "`run` is a str, not a run. It is the run of the cell above: `stuck`.",
    ),
    "a number for the run": (RIGHT | {"run": 3}, "`run` is an int, not a run."),
}


@pytest.mark.parametrize("mistake", WRONG_READINGS)
def test_each_wrong_reading_of_a_hang_has_its_own_hint(mistake):
    answer, expected = WRONG_READINGS[mistake]
    assert expected in hint("00.2", {"run": early_exit()} | answer)


@pytest.mark.parametrize(
    "collective",
    [
        "barrier",
        "dist.barrier()",
        " Barrier ",
        "torch.distributed.barrier",
        "barrier (its 22nd collective)",
        "dist.barrier() (its 22nd collective)",
        "`barrier`",
    ],
)
def test_a_right_reading_is_done(collective):
    assert lab.check("00.2", {"run": early_exit()} | RIGHT | {"collective": collective}).done


def test_numbers_may_be_typed_as_texts():
    assert lab.check("00.2", {"run": early_exit()} | RIGHT | {"rank": "0", "line": " 38 "}).done


def test_an_answer_copied_from_another_run_is_not_done():
    assert not lab.check("00.2", {"run": early_exit(where_line=40)} | RIGHT).done
    assert not lab.check("00.2", {"run": early_exit(left=1, steps=(16, 15))} | RIGHT).done


def test_a_run_that_did_not_hang_or_in_which_no_rank_left_is_told_apart():
    asked = "`run` is to be `stuck`, the run of faults/early_exit_one_rank with stall=4 and check=False."
    assert hint("00.2", {"run": squares()} | RIGHT) == f"the run of cell.py did not hang. {asked}"
    text = hint("00.2", {"run": early_exit(steps=(3, 3))} | RIGHT)
    assert text == f"in the run of cell.py no rank left a loop before the others. {asked}"
    silent = made_up_run([[], []], error=early_exit().error)
    assert "no rank left a loop" in hint("00.2", {"run": silent} | RIGHT)


def test_the_hang_that_the_exercise_asks_about_can_be_read():
    run = lab.torchrun("faults/early_exit_one_rank", stall=5, check=False, show="none")
    barrier = next(
        number
        for number, line in enumerate(lab.source("faults/early_exit_one_rank").text.splitlines(), 1)
        if "dist.barrier()" in line
    )
    assert lab.check("00.2", {"run": run, "rank": 0, "collective": "barrier", "line": barrier}).done


def test_the_sum_that_the_exercise_asks_for_can_be_run(tmp_path):
    script = tmp_path / "squares.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "from ddp_lab import worker\n"
        "dist.init_process_group()\n"
        "mine = (dist.get_rank() + 1) ** 2\n"
        "total = torch.tensor(mine)\n"
        "dist.all_reduce(total)\n"
        "worker.log(mine=mine, total=total)\n"
        "dist.destroy_process_group()\n"
    )
    assert lab.check("00.1", lab.torchrun(str(script), nproc=3, show="none")).done


WRITTEN_DOWN = """
import os
from ddp_lab import worker

worker.log(mine=(int(os.environ["RANK"]) + 1) ** 2, total=14)
"""


def test_the_script_of_a_run_may_be_a_file_and_is_read_as_a_cell_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = Path("my squares.py")
    script.write_text(WRITTEN_DOWN)
    run = lab.torchrun(script, nproc=3, show="none")
    assert "there is no all_reduce in the script" in hint("00.1", run)

    # Changed after the run: what stands there is not what has run.
    later = (run.dir / "result.json").stat().st_mtime + 1
    script.write_text("dist.all_reduce(total)\n")
    os.utime(script, (later, later))
    assert hint("00.1", run) == "my squares.py has been changed since this run. Run it again, then check."
