"""checks: done only for what the task asks, and for each typical mistake a hint of its own; never an exception."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

import ddp_lab as lab
from ddp_lab import checks
from ddp_lab.errors import InputError
from ddp_lab.launch.failures import HangError


def made_up_run(records, folder="nowhere", script="cell.py", error=None):
    """A run with these records, a list for each rank."""
    ranks = [SimpleNamespace(rank=rank, records=own) for rank, own in enumerate(records)]
    return SimpleNamespace(ranks=ranks, ok=error is None, error=error, frame=None, dir=Path(folder), name=script)


def squares(mine=(1, 4, 9), total=(14, 14, 14), **more):
    return made_up_run([[{"mine": m, "total": t}] for m, t in zip(mine, total, strict=True)], **more)


def hint(name, answer):
    verdict = lab.check(name, answer)
    assert not verdict.done and verdict.hint and "\n" not in verdict.hint
    return verdict.hint


class Hostile:
    """An answer whose every attribute fails."""

    def __getattr__(self, name):
        raise ZeroDivisionError("boom")


ANYTHING = [None, ..., 14, "14", float("nan"), [], {}, {"mine": 1}, object, lambda: 0, Hostile(), ([],), b"x"]


@pytest.mark.parametrize("name", sorted(checks.EXERCISES))
@pytest.mark.parametrize("answer", ANYTHING, ids=[str(i) for i in range(len(ANYTHING))])
def test_whatever_the_answer_is_the_learner_gets_a_hint(name, answer):
    text = hint(name, answer)
    assert any(
        word in text for word in ("`answer`", ", answer)", '"run": answer}', "`stuck`")
    )  # as the notebook calls it
    assert " a int" not in text and " a object" not in text


def test_every_check_says_what_the_answer_should_be():
    assert sorted(checks.EXERCISES) == ["00.1", "00.2", "03.1", "03.2", "03.3", "03.4"]
    assert all(check.__doc__.startswith("The answer is ") for check in checks.EXERCISES.values())


@pytest.mark.parametrize("name", ["0.1", "00.9", "", None, 0.1])
def test_an_unknown_exercise_is_an_error_that_lists_the_known(name):
    with pytest.raises(InputError, match="00.1, 00.2"):
        lab.check(name, 1)


def test_one_line_is_printed_and_the_verdict_says_the_same(capsys):
    verdict = lab.check("00.1", squares())
    assert (verdict.exercise, verdict.done, verdict.hint) == ("00.1", True, "")
    assert capsys.readouterr().out == "done: 3 ranks added 1, 4 and 9, and the total is 14 on each.\n"
    verdict = lab.check("00.1", None)
    assert capsys.readouterr().out == f"not yet: {verdict.hint}\n"


def test_the_ledger_has_each_check(tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_LAB_LEDGER", str(tmp_path / "ledger"))
    lab.check("00.1", squares())
    lab.check("00.2", None)
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert [(e["event"], e["exercise"], e["done"]) for e in lines] == [
        ("check", "00.1", True),
        ("check", "00.2", False),
    ]


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


def early_exit(left=0, where_line=38, steps=(15, 16)):
    spots = [
        {"rank": rank, "file": "x.py", "line": where_line if rank == left else 31, "function": "main"}
        | {"collective": "barrier" if rank == left else "backward (bucket all_reduce)"}
        for rank in (0, 1)
    ]
    records = [[{"step": step} for step in range(last + 1)] for last in steps]
    return made_up_run(records, error=HangError("no sign of life", where=spots))


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


# ---- 03 Setting up DDP: the notebook's own cells are run, as they stand and with mistakes in them

NOTEBOOK = nbformat.read(Path(__file__).resolve().parent.parent / "notebooks" / "03_ddp_setup.ipynb", as_version=4)


def cell(name):
    """(the script of the notebook's cell of this --name, its number of ranks)."""
    (source,) = [cell.source for cell in NOTEBOOK.cells if f" --name {name} " in cell.source]
    options, script = source.split("\n", 1)
    words = shlex.split(options)
    return script, int(words[words.index("--nproc") + 1])


@pytest.fixture
def run_cell(tmp_path):
    def run(name, *edits, nproc=None, **options):
        """The run of a cell in which texts were replaced: pairs (old, new)."""
        script, ranks = cell(name)
        for old, new in edits:
            assert old in script, old
            script = script.replace(old, new)
        (tmp_path / name).write_text(script)
        run = lab.torchrun(str(tmp_path / name), nproc=nproc or ranks, show="none", check=False, **options)
        (run.dir / name).write_text(script)  # where the script of a cell lies
        return run

    return run


@pytest.mark.parametrize("name, changed", [("by_hand", 0), ("ddp", 4), ("save", 0), ("go_on", 2)])
def test_a_solution_is_its_starter_with_little_changed(name, changed):
    """So a learner who opens it finds the script that they know: all lines of the starter but these few."""
    starter, solution = (set(cell(f"{which}.py")[0].splitlines()) for which in (name, f"{name}_solution"))
    missing = [line for line in starter - solution if "# your turn" not in line]
    assert len(missing) <= changed, missing


def test_the_exercise_to_ddp_starts_from_its_target():
    assert cell("ddp.py")[0] == cell("one_process.py")[0]


BROADCAST = "dist.broadcast(weight.detach(), src=0)\n"
REDUCE = "    dist.all_reduce(weight.grad)  # the sum, in place\n"
DIVIDE = "    weight.grad /= world_size  # the mean\n"
STEP = "    optimizer.step()\n"
AVERAGE_WEIGHTS = STEP + "    dist.all_reduce(weight.detach())\n    weight.detach().div_(world_size)\n"
WRONG_AVERAGES = {  # mistake: (edits of the solution, the hint)
    "no broadcast": ([(BROADCAST, "")], "the gradients are equal, the weights are not"),
    "no average": ([(REDUCE + DIVIDE, "")], "all begin with one weight and drift apart from step 0 on"),
    "sum": ([(DIVIDE, "")], "3 times what one process has: it is the sum"),
    "half": ([("/= world_size", "/= 2")], "1.5 times what one process has. Divide the sum by the number of ranks"),
    "after the step": ([(REDUCE + DIVIDE, ""), (STEP, STEP + REDUCE + DIVIDE)], "all_reduce comes after step()"),
    "after the log": ([(REDUCE + DIVIDE, ""), (STEP, REDUCE + DIVIDE + STEP)], "Average above the log"),
    "weights averaged": ([(REDUCE + DIVIDE, ""), (STEP, AVERAGE_WEIGHTS)], "it is they that were averaged"),
    "weights averaged alone": (
        [(BROADCAST, ""), (REDUCE + DIVIDE, ""), (STEP, AVERAGE_WEIGHTS)],
        "the weights are equal, the gradients are not. Average the gradients",
    ),
    "sent in every step": (
        [(REDUCE + DIVIDE, ""), (STEP, STEP + "    " + BROADCAST)],
        "it has learned from rank 0's data alone",
    ),
    "a copy reduced": ([("weight.grad)", "weight.grad.clone())")], "Add them up over the ranks, in place"),
    "a copy reduced, nothing sent": (
        [(BROADCAST, ""), ("weight.grad)", "weight.grad.clone())"), (DIVIDE, "")],
        "all_reduce changes what it is given, in place: give it weight.grad",
    ),
    "None assigned": ([("    dist.all_reduce", "    weight.grad = dist.all_reduce")], "the run failed (rank"),
    "another rank's weight": ([("src=0", "src=1")], "the ranks agree, but began with"),
    "one step": ([("    dist.all_reduce", "    if step == 0: dist.all_reduce")], "of its own"),
    "one seed": ([("torch.manual_seed(rank)", "torch.manual_seed(0)")], "two ranks have drawn the same weight"),
    "wrapped": (
        [
            ("import torch\n", "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"),
            ("weight = model.weight", "weight = model.weight\nmodel = DDP(model)"),
        ],
        "here it is to be done by hand",
    ),
    "fewer steps": ([("range(8)", "range(3)")], "rank 0 logged weight in 3 of the 8 steps"),
    "nothing drawn": ([("worker.log(drawn=weight.item())\n", "")], "did not log what it has drawn"),
    "a text": ([("weight=weight.item()", "weight=str(weight.item())")], "as weight, not a number"),
    "nan": ([("weight=weight.item()", "weight=float('nan')")], "weights are not"),
}


@pytest.mark.parametrize("mistake", WRONG_AVERAGES)
def test_each_wrong_average_has_its_own_hint(mistake, run_cell):
    edits, expected = WRONG_AVERAGES[mistake]
    assert expected in hint("03.1", run_cell("by_hand_solution.py", *edits))


RIGHT_AVERAGES = {
    "AVG": (REDUCE + DIVIDE, "    dist.all_reduce(weight.grad, dist.ReduceOp.AVG)\n"),
    "gathered": (
        REDUCE + DIVIDE,
        "    all_of_them = [torch.empty_like(weight.grad) for _ in range(world_size)]\n"
        "    dist.all_gather(all_of_them, weight.grad)\n"
        "    weight.grad = torch.stack(all_of_them).mean(0)\n",
    ),
    "twice": (REDUCE + DIVIDE, 2 * (REDUCE + DIVIDE)),  # a mean of equal numbers is that number
}


@pytest.mark.parametrize("way", RIGHT_AVERAGES)
def test_every_way_to_the_mean_is_right(way, run_cell):
    assert lab.check("03.1", run_cell("by_hand_solution.py", RIGHT_AVERAGES[way])).done


def test_the_starter_of_the_average_is_told_what_is_missing(run_cell):
    assert "each rank trains alone" in hint("03.1", run_cell("by_hand.py"))
    assert "Write --nproc 3" in hint("03.1", run_cell("by_hand_solution.py", nproc=2))


def by_the_book(script, folder):
    """A run with the right numbers, computed without ranks, and this script."""
    drawn, weight = [0.5, 0.1, 0.2], 0.5
    records = []
    for step in range(8):
        records += [{"step": step, "gradient": 2 * (weight - 2)}]
        weight -= 0.5 * (weight - 2)
        records += [{"step": step, "weight": weight}]
    (folder / "cell.py").write_text(script)
    return made_up_run([[{"drawn": own}, *records] for own in drawn], folder)


def test_an_average_computed_without_the_other_ranks_is_not_done(tmp_path):
    assert "no rank asked the others" in hint("03.1", by_the_book("worker.log(weight=1.9)\n", tmp_path))
    assert lab.check("03.1", by_the_book("dist.all_gather(all, mine)\n", tmp_path)).done


@pytest.fixture(scope="module")
def target():
    script, _ = cell("one_process.py")
    return in_one_process(script)


def in_one_process(script):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "one_process.py")
        path.write_text(script)
        return lab.torchrun(str(path), nproc=1, show="none")


WRAP = "DistributedDataParallel(models.mlp().double())"
SAMPLER = "sampler = DistributedSampler(dataset, shuffle=False)  # the twin does not shuffle either\n"
LOADER = "batch_size=4 // dist.get_world_size(), sampler=sampler"
WRONG_CHANGES = {  # mistake: (edits of the solution, the hint)
    "no wrap": ([(WRAP, "models.mlp().double()")], "apart after step 0: nothing averages their gradients"),
    "called past the wrapper": ([("model(images)", "model.module(images)")], "Does the loss come from the wrapper"),
    "no sampler": ([(LOADER, "batch_size=4 // dist.get_world_size()")], "each rank reads all 16 samples. What shares"),
    "shuffled": ([(", shuffle=False", "")], "DistributedSampler shuffles, unless it is told not to"),
    "the whole batch size": (
        [("4 // dist.get_world_size()", "4")],
        "in step 0 the ranks read 8 samples together, the tar",
    ),
    "in blocks": (
        [(SAMPLER, "sampler = range(dist.get_rank() * 8, dist.get_rank() * 8 + 8)\n")],
        "in step 0 the ranks read [0, 1, 8, 9], the target [0, 1, 2, 3].",
    ),
    "float32": ([(".double()", "")], "close, not equal. Did .double() stay everywhere?"),
    "sum for mean": (
        [("cross_entropy(model(images), labels)", "2 * cross_entropy(model(images), labels)")],
        "the mean in",
    ),
    "another rate": ([("lr=0.5", "lr=0.1")], "the ranks agree, and yet differ from the target"),
    "another seed": (
        [("dist.get_rank())  #", "dist.get_rank() + 1)  #")],
        "the ranks agree, and yet differ from the tar",
    ),
    "no end": ([("dist.destroy_process_group()", "")], "One line is missing, the last: leave the group"),
    "nothing logged": ([("samples=samples, ", "")], "rank 0 logged no samples"),
    "no weights": ([(", weights=weights", "")], "logged weights in 0 of the 4 steps"),
    "the last step not logged": (
        [("    worker.log", "    if step < 3: worker.log")],
        "in step 3 the ranks read [], the tar",
    ),
    "an error": ([("loss.backward()", "raise ValueError('boom')")], "the run failed (rank"),
}


@pytest.mark.parametrize("mistake", WRONG_CHANGES)
def test_each_wrong_change_to_ddp_has_its_own_hint(mistake, run_cell, target):
    edits, expected = WRONG_CHANGES[mistake]
    assert expected in hint("03.2", {"target": target, "run": run_cell("ddp_solution.py", *edits)})


def test_the_starter_to_ddp_is_told_what_is_missing(run_cell, target):
    starter = run_cell("ddp.py")
    text = hint("03.2", {"target": target, "run": starter})
    assert "each rank trained on all 16 samples, alone: no rank has joined a group" in text
    assert "Write --nproc 2" in hint("03.2", {"target": target, "run": run_cell("ddp.py", nproc=1)})
    assert "Give both" in hint("03.2", starter)
    assert "`target` is to be the run of one_process.py" in hint("03.2", {"target": starter, "run": starter})
    assert "`target` is to be the run of one_process.py" in hint("03.2", {"run": starter})
    assert "the answer is nothing, not a run" in hint("03.2", {"target": target, "run": None})


def test_a_wrapper_under_another_name_is_a_wrapper(run_cell, target):
    alias = (
        ("import DistributedDataParallel", "import DistributedDataParallel as DDP"),
        (f"= {WRAP}", f"= DDP{WRAP[23:]}"),
    )
    assert lab.check("03.2", {"target": target, "run": run_cell("ddp_solution.py", *alias)}).done


@pytest.mark.parametrize("nproc", [2, 4])
def test_the_solution_to_ddp_is_right_on_any_number_of_ranks_that_divides_the_batch(nproc, run_cell, target):
    assert lab.check("03.2", {"target": target, "run": run_cell("ddp_solution.py", nproc=nproc)}).done


def test_the_targets_numbers_written_down_are_not_done(target, tmp_path):
    aim = target.ranks[0].records
    halves = [[record | {"samples": record["samples"][rank::2]} for record in aim] for rank in (0, 1)]
    (tmp_path / "cell.py").write_text("worker.log(weights=1)\n")
    run = made_up_run(halves, tmp_path)
    assert "nothing in the script averages over ranks" in hint("03.2", {"target": target, "run": run})


SAVE = 'if rank == 0:\n    worker.save("checkpoint", model.module.state_dict())\n'
WRONG_FILES = {  # mistake: (what stands in the solution's place, the hint)
    "nothing": ("", "no rank has saved anything"),
    "of the wrapper": (SAVE.replace(".module", ""), 'the names begin with "module." (module.1.bias)'),
    "by all": ('worker.save("checkpoint", model.module.state_dict())\n', "ranks 0, 1 have saved"),
    "by rank 1": (SAVE.replace("== 0", "== 1"), "rank 1 has saved"),
    "another name": (SAVE.replace("checkpoint", "model"), "it was saved as model. Give it the name checkpoint."),
    "fresh weights": (SAVE.replace("model.module", "models.mlp()"), "these are not the trained weights"),
    "the model itself": (SAVE.replace(".state_dict()", ""), "the run failed (rank 0"),
    "the optimizer": (SAVE.replace("model.module", "optimizer"), "no dict of names and tensors"),
    "a list": (SAVE.replace("model.module.state_dict()", "[1, 2]"), "no dict of names and tensors"),
    "in a dict": (SAVE.replace("model.module.state_dict()", '{"model": [1]}'), "no dict of names and tensors"),
    "a part": (SAVE.replace("module.state", "module[1].state"), "it lacks 1.weight, 1.bias, 3.weight, 3.bias"),
    "more": (
        SAVE.replace("model.module.state_dict()", 'model.module.state_dict() | {"epoch": torch.ones(1)}'),
        "it has epoch too",
    ),
    "turned": (
        SAVE.replace("model.module.state_dict()", "{n: p.T for n, p in model.module.state_dict().items()}"),
        "3.weight has the shape (64, 10), in a bare mlp() (10, 64)",
    ),
    "what the cure returns": (
        "if rank == 0:\n"
        "    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present as cure\n"
        '    worker.save("checkpoint", cure(model.state_dict(), "module."))\n',
        "None was saved",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_FILES)
def test_each_wrong_checkpoint_has_its_own_hint(mistake, run_cell):
    code, expected = WRONG_FILES[mistake]
    assert expected in hint("03.3", run_cell("save_solution.py", (SAVE, code)))


LOG_WEIGHTS = "worker.log(weights=sum(p.detach().double().abs().sum().item() for p in model.parameters()))\n"


def test_a_checkpoint_from_before_the_training_and_a_changed_training_are_told(run_cell):
    early = run_cell("save_solution.py", (SAVE, ""), ("for step in range(10):", SAVE + "for step in range(10):"))
    assert "these are not the trained weights" in hint("03.3", early)
    bare = run_cell("save_solution.py", ("DistributedDataParallel(models.mlp())", "models.mlp()"), (".module", ""))
    assert "the ranks' models differ by now" in hint("03.3", bare)
    assert "did not log its weights" in hint("03.3", run_cell("save_solution.py", (LOG_WEIGHTS, "")))
    assert "the run had 1 rank" in hint("03.3", run_cell("save_solution.py", nproc=1))


def test_names_put_right_by_hand_and_a_starter_without_an_answer(run_cell):
    by_hand = '{n.removeprefix("module."): p for n, p in model.state_dict().items()}'
    right = run_cell("save_solution.py", ("model.module.state_dict()", by_hand), nproc=3)
    assert lab.check("03.3", right).done
    assert "no rank has saved anything" in hint("03.3", run_cell("save.py"))


LOAD = "if rank == 0:\n    net.load_state_dict(saved)\n"
FIRST_WRAP = "model = DistributedDataParallel(net)  # sends what rank 0 has loaded\n"
THAW = "    if step == 3:  # and then both\n        body.requires_grad_(True)\n"
WRAP_AGAIN = "        model = DistributedDataParallel(net)  # knows the body's parameters, too\n"
OPTIMIZE = "    optimizer.step()\n"
SEND = OPTIMIZE + "    for p in net.parameters():\n        dist.broadcast(p.detach(), src=0)\n"
WRONG_REPAIRS = {  # mistake: (edits of the solution, the hint)
    "loaded too late": ([(LOAD, ""), (FIRST_WRAP, FIRST_WRAP + LOAD)], "only rank 0 has the saved weights. When does"),
    "not wrapped again": ([(WRAP_AGAIN, "")], "equal up to step 3, and"),
    "neither": ([(LOAD, ""), (FIRST_WRAP, FIRST_WRAP + LOAD), (WRAP_AGAIN, "")], "only rank 0 has the saved weights"),
    "not loaded": ([(LOAD, "")], "do not begin with the saved weights"),
    "one seed": ([("torch.manual_seed(rank)", "torch.manual_seed(0)")], "each is to keep data of its own"),
    "sent, not averaged": ([(WRAP_AGAIN, ""), (OPTIMIZE, SEND)], "the gradients are not: that hides the fault"),
    "thawed at once": (
        [(THAW + WRAP_AGAIN, ""), ("requires_grad_(False)", "requires_grad_(True)")],
        "stay frozen until",
    ),
    "never thawed": ([(THAW + WRAP_AGAIN, "")], "the body is no longer trained"),
    "fewer steps": ([("range(6)", "range(5)")], "logged body in 5 of the 6 steps"),
}


@pytest.mark.parametrize("mistake", WRONG_REPAIRS)
def test_each_wrong_repair_has_its_own_hint(mistake, run_cell):
    edits, expected = WRONG_REPAIRS[mistake]
    assert expected in hint("03.4", run_cell("go_on_solution.py", *edits))


RIGHT_REPAIRS = {
    "loaded by all": [(LOAD, "net.load_state_dict(saved)\n")],
    "loaded by all, after the wrap": [(LOAD, ""), (FIRST_WRAP, FIRST_WRAP + "net.load_state_dict(saved)\n")],
    "told of unused parameters": [
        ("body.requires_grad_(False)  # at first the head alone\n", ""),
        (FIRST_WRAP, "model = DistributedDataParallel(net, find_unused_parameters=True)\nbody.requires_grad_(False)\n"),
        (WRAP_AGAIN, ""),
    ],
}


@pytest.mark.parametrize("repair", RIGHT_REPAIRS)
def test_every_repair_that_mends_the_numbers_is_right(repair, run_cell):
    assert lab.check("03.4", run_cell("go_on_solution.py", *RIGHT_REPAIRS[repair])).done


def test_the_starter_of_the_repair_is_told_the_first_fault_and_then_the_second(run_cell):
    assert "in step 0, before anything was trained" in hint("03.4", run_cell("go_on.py"))
    text = hint("03.4", run_cell("go_on.py", (LOAD, ""), ("model = Dist", LOAD + "model = Dist")))
    assert "apart in step 4, in the body. What was trained for the first time just before" in text
    assert "the run had 1 rank" in hint("03.4", run_cell("go_on.py", nproc=1))


@pytest.mark.parametrize("name", ["03.1", "03.3", "03.4"])
def test_a_hang_and_a_failure_are_told_first(name):
    assert "the run hung" in hint(name, made_up_run([[], []], error=early_exit().error))
    assert "Mend that first" in hint(name, made_up_run([[], []], error=RuntimeError("rank 1 failed")))
