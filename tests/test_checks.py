"""checks: done only for what the task asks, and for each typical mistake a hint of its own; never an exception."""

import json
from types import SimpleNamespace

import pytest

import ddp_lab as lab
from ddp_lab import checks
from ddp_lab.errors import InputError
from ddp_lab.launch.failures import HangError


def made_up_run(records, folder="nowhere", script="cell.py", error=None):
    """A run with these records, a list for each rank."""
    from pathlib import Path

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


@pytest.mark.parametrize("name", ["00.1", "00.2"])
@pytest.mark.parametrize("answer", ANYTHING, ids=[str(i) for i in range(len(ANYTHING))])
def test_whatever_the_answer_is_the_learner_gets_a_hint(name, answer):
    assert "lab.check" in (text := hint(name, answer)) or "{" in text or "open" in text


def test_every_check_says_what_the_answer_should_be():
    assert sorted(checks.EXERCISES) == ["00.1", "00.2"]
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
    "everything on each rank": (squares((14,) * 3), "rank 0 adds 14"),
    "rank squared": (squares((0, 1, 4), (5,) * 3), "rank 0 adds 0"),
    "no all_reduce": (squares(total=(1, 4, 9)), "nothing was added up"),
    "reduce": (squares(total=(14, 13, 9)), "ranks 1, 2 did not get the sum"),
    "mean": (squares(total=(4.6666665,) * 3), "mean"),
    "logged too early": (squares(total=(0, 0, 0)), "after all_reduce"),
    "texts": (made_up_run([[{"mine": "1", "total": "14"}]] * 3), "no number"),
    "nan": (squares((float("nan"), 4, 9)), "rank 0 adds nan"),
    "failed run": (squares(error=RuntimeError("rank 1 failed\nmore")), "Mend that first"),
}


@pytest.mark.parametrize("mistake", WRONG_SQUARES)
def test_each_wrong_sum_has_its_own_hint(mistake):
    run, expected = WRONG_SQUARES[mistake]
    assert expected in hint("00.1", run)


def test_a_total_that_was_written_down_is_not_a_sum(tmp_path):
    (tmp_path / "cell.py").write_text("# all_reduce\nworker.log(mine=(rank + 1) ** 2, total=14)\n")
    assert "no all_reduce in the script" in hint("00.1", squares(folder=tmp_path))
    (tmp_path / "cell.py").write_text("dist.all_reduce(total)\nworker.log(mine=mine, total=total)\n")
    assert lab.check("00.1", squares(folder=tmp_path)).done


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
    "words for numbers": (RIGHT | {"rank": "zero"}, "whole numbers"),
    "a list": (RIGHT | {"line": [38]}, "whole numbers"),
}


@pytest.mark.parametrize("mistake", WRONG_READINGS)
def test_each_wrong_reading_of_a_hang_has_its_own_hint(mistake):
    answer, expected = WRONG_READINGS[mistake]
    assert expected in hint("00.2", {"run": early_exit()} | answer)


@pytest.mark.parametrize("collective", ["barrier", "dist.barrier()", " Barrier ", "torch.distributed.barrier"])
def test_a_right_reading_is_done(collective):
    assert lab.check("00.2", {"run": early_exit()} | RIGHT | {"collective": collective}).done


def test_an_answer_copied_from_another_run_is_not_done():
    assert not lab.check("00.2", {"run": early_exit(where_line=40)} | RIGHT).done
    assert not lab.check("00.2", {"run": early_exit(left=1, steps=(16, 15))} | RIGHT).done


def test_a_run_that_did_not_hang_or_in_which_no_rank_left_is_told_apart():
    assert "did not hang" in hint("00.2", {"run": squares()} | RIGHT)
    assert "no rank left a loop" in hint("00.2", {"run": early_exit(steps=(3, 3))} | RIGHT)
    assert "not a run" in hint("00.2", {"run": 3} | RIGHT)


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
