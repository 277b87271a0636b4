"""Checks of the learner's answers: one line that says what is right, or what to look at next.

A check reads the answer as a colleague would: it says `done` only for what the task asks, never raises for a
wrong answer, and has a hint of its own for each typical mistake.
"""

import ast
import difflib
import math
from dataclasses import dataclass

from ddp_lab.errors import InputError

EXERCISES = {}


@dataclass(frozen=True)
class Verdict:
    """What a check found: `.exercise`, `.done`, and `.hint` (what to look at next, "" when done)."""

    exercise: str
    done: bool
    hint: str = ""

    def _ipython_display_(self):
        """Nothing: check() has printed its line already, also where it ends a cell."""


class NotYet(Exception):
    """Raised by a check; the message is the hint."""


def exercise(name):
    """Register the check of an exercise: a function of the answer that returns what is right, or raises NotYet.

    Its docstring says what the answer should be; the learner reads it if the answer is something else altogether.
    """

    def register(function):
        EXERCISES[name] = function
        return function

    return register


def check(name, answer):
    """Check the answer to an exercise: `lab.check("00.1", run)` prints one line and returns a Verdict.

    InputError for an exercise that does not exist.
    """
    if not isinstance(name, str) or name not in EXERCISES:
        near = difflib.get_close_matches(str(name), EXERCISES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"there is no exercise {name!r}; {hint}exercises: {', '.join(sorted(EXERCISES))}")
    try:
        right, verdict = EXERCISES[name](answer), Verdict(name, True)
    except NotYet as hint:
        verdict = Verdict(name, False, str(hint))
    except Exception as error:  # a learner's answer may be anything, and may fail in any way when it is read
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        verdict = Verdict(name, False, f"the answer could not be read ({what}). {EXERCISES[name].__doc__}")
    print(f"done: {right}" if verdict.done else f"not yet: {verdict.hint}", flush=True)

    from ddp_lab.launch import ledger

    ledger.write("check", exercise=name, done=verdict.done)
    return verdict


# ---- what checks have in common


def _run(answer, name):
    """The answer as a run, else a hint."""
    if not all(hasattr(answer, part) for part in ("ranks", "ok", "error", "frame")):
        kind = "nothing" if answer is None or answer is ... else f"a {type(answer).__name__}"
        raise NotYet(f"the answer is {kind}, not a run. {EXERCISES[name].__doc__}")
    return answer


def _logged(run, name):
    """[the last number that each rank logged as `name`, None where there is none]."""
    found = []
    for rank in run.ranks:
        values = [record[name] for record in rank.records if isinstance(record.get(name), (int, float))]
        found.append(values[-1] if values else None)
    return found


def _ranks(numbers):
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


def _calls(run):
    """Names of all that the run's script calls; None if it is not in the run's folder (it was no cell)."""
    try:
        tree = ast.parse((run.dir / run.name).read_text())
    except (OSError, SyntaxError):
        return None
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {getattr(function, "attr", getattr(function, "id", None)) for function in called}


# ---- 00 Start here


@exercise("00.1")
def _add_squares(run):
    """The answer is the run of your cell on 3 ranks: `lab.check("00.1", run)`."""
    run = _run(run, "00.1")
    if not run.ok:
        raise NotYet(f"the run failed ({str(run.error).splitlines()[0]}). Mend that first.")
    if len(run.ranks) != 3:
        raise NotYet(f"the run had {len(run.ranks)} ranks. Write --nproc 3 in the first line of the cell.")
    mine, total = _logged(run, "mine"), _logged(run, "total")
    for name, values in (("mine", mine), ("total", total)):
        silent = [rank for rank, value in enumerate(values) if value is None]
        if silent:
            raise NotYet(
                f"{_ranks(silent)} logged no number as {name}. Every rank calls worker.log(mine=..., total=...)."
            )
    if mine == [1, 2, 3]:
        raise NotYet("each rank still adds rank + 1. It is to add the square of that: 1, 4 and 9.")
    wrong = [rank for rank, value in enumerate(mine) if not math.isclose(value, (rank + 1) ** 2)]
    if wrong:
        r = wrong[0]
        raise NotYet(f"rank {r} adds {mine[r]:g}; it is to add the square of its rank + 1, which is {(r + 1) ** 2}.")
    if total == mine:
        raise NotYet("each rank's total is its own number: nothing was added up. Which call adds over the ranks?")
    wrong = [rank for rank, value in enumerate(total) if not math.isclose(value, 14)]
    if len(wrong) == 3 and all(math.isclose(value, 14 / 3, rel_tol=1e-5) for value in total):
        raise NotYet("the total is the mean, 14 / 3. all_reduce adds unless it is told otherwise.")
    if wrong and len(wrong) < 3:
        raise NotYet(f"{_ranks(wrong)} did not get the sum, 14. reduce gives it to one rank, all_reduce to all.")
    if wrong:
        raise NotYet(f"the total is {total[wrong[0]]:g}, not 14. Log it after all_reduce, which adds in place.")
    calls = _calls(run)
    if calls is not None and not calls & {"all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object"}:
        raise NotYet("14 is right, but no rank asked the others for it: there is no all_reduce in the script.")
    return "3 ranks added 1, 4 and 9, and the total is 14 on each."


@exercise("00.2")
def _who_left(answer):
    """The answer is `{"run": run, "rank": ..., "collective": "...", "line": ...}`, read from the report on the hang."""
    if not isinstance(answer, dict):
        raise NotYet(f"the answer is a {type(answer).__name__}. {_who_left.__doc__}")
    missing = [key for key in ("run", "rank", "collective", "line") if answer.get(key) in (None, ..., "")]
    if missing:
        raise NotYet(f"{missing[0]} is still open. The table in the report on the hang has it.")
    run = _run(answer["run"], "00.2")
    where = getattr(run.error, "where", None)
    if not where:
        raise NotYet("this run did not hang. Run faults/early_exit_one_rank with stall=10 and check=False.")
    steps = {
        spot["rank"]: max((r["step"] for r in run.ranks[spot["rank"]].records if "step" in r), default=None)
        for spot in where
    }
    if None in steps.values() or len(set(steps.values())) == 1:
        raise NotYet("in this run no rank left a loop before the others. Run faults/early_exit_one_rank.")
    gone = min(steps, key=steps.get)
    spot = next(spot for spot in where if spot["rank"] == gone)
    try:
        rank, line = int(answer["rank"]), int(answer["line"])
    except (TypeError, ValueError):
        raise NotYet("rank and line are whole numbers, as in the report.") from None
    if rank != gone:
        raise NotYet(f"rank {rank} is not the one that left. Which rank stands in a call after the loop?")
    if _bare(answer["collective"]) != _bare(spot["collective"]):
        raise NotYet(f"rank {gone} does not wait in {answer['collective']}. Read its row, under `waiting in`.")
    if line != spot["line"]:
        raise NotYet(f"rank {gone} does not stand in line {line}. Its row has file:line under `where`.")
    others = ", ".join(f"rank {s['rank']} in {s['collective']}" for s in where if s["rank"] != gone)
    return f"rank {gone} left the loop and waits in {spot['collective']}, line {line}; {others} waits for it."


def _bare(collective):
    """A collective's name as typed by anyone: `dist.barrier()` is barrier."""
    return str(collective).strip().lower().removesuffix("()").split(".")[-1]
