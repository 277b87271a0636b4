"""Checks of notebook 00, Start here."""

import ast
import math
import re

from ddp_lab.checks.answers import BRING, calls_in, ended_well, is_run, kind_of, logged, named, of_ranks, script_of
from ddp_lab.checks.verdict import NotYet, exercise


@exercise("00.1")
def _add_squares(run):
    """The answer is the run of your cell on 3 ranks: `lab.check("00.1", answer)`."""
    if isinstance(run, dict) and "collective" in run:
        raise NotYet("`answer` is the answer to 00.2 by now. Run your cell of 00.1 again, then this check.")
    ended_well(run, _add_squares.__doc__)
    of_ranks(run, 3)
    tree = script_of(run)
    calls = calls_in(tree) if tree else []
    names = {name for name, _, _ in calls}
    reduces = tree is None or "all_reduce" in names  # a script that is not there may do so
    mine, total = logged(run, "mine"), logged(run, "total")
    for name, values in (("mine", mine), ("total", total)):
        _numbers(name, values, "all_reduce" if reduces else "reduce" if "reduce" in names else None)
    _own_numbers(mine, total, tree, reduces)
    _sums(mine, total, tree, calls)
    if tree and not any(name and BRING.match(name) for name in names):
        raise NotYet("14 is right, but no rank asked the others for it: there is no all_reduce in the script.")
    return "3 ranks added 1, 4 and 9, and the total is 14 on each."


def _numbers(name, values, call):
    """A hint unless every rank has logged a number. `call`: what may have returned None."""
    if call and values.count(None) == len(values):
        raise NotYet(f"{name} is None: {call} returns nothing, it changes its argument.")
    silent = [rank for rank, value in enumerate(values) if value is ...]
    if silent:
        raise NotYet(f"{named(silent)} logged no number as {name}. Every rank calls worker.log(mine=..., total=...).")
    for rank, value in enumerate(values):
        if not isinstance(value, (int, float)):
            raise NotYet(f"rank {rank} logged {str(value)[:40]!r} as {name}, {kind_of(value)}. It is to be one number.")


def _own_numbers(mine, total, tree, reduces):
    """A hint unless `mine` is the square on each rank, before anything was added."""
    if mine == [1, 2, 3]:
        if total == [14, 14, 14]:
            raise NotYet("14 is right, but mine is logged as rank + 1. Log what the rank adds, the square: 1, 4 and 9.")
        if tree and any(_adds_a_power(node) for node in ast.walk(tree)):
            raise NotYet("each rank still adds rank + 1: `**` comes before `+`. Put brackets around rank + 1.")
        raise NotYet("each rank still adds rank + 1. It is to add the square of that: 1, 4 and 9.")
    if reduces and mine in ([14, 14, 14], [6, 6, 6]):
        cure = "Make total a copy, mine.clone(), and reduce that." if total == mine else "Reduce the copy, total."
        raise NotYet(f"mine is {mine[0]:g}, the sum: all_reduce works in place. {cure}")
    for rank, value in enumerate(mine):
        square = (rank + 1) ** 2
        if not math.isclose(value, square):
            raise NotYet(f"rank {rank} adds {value:g}; it is to add the square of its rank + 1, which is {square}.")


def _sums(mine, total, tree, calls):
    """A hint unless `total` is the sum of the squares on each rank."""
    wrong = [rank for rank, value in enumerate(total) if not math.isclose(value, 14)]
    if not wrong:
        return
    reduces = [(call, scope) for name, call, scope in calls if name == "all_reduce"]
    logs = [(call, scope) for name, call, scope in calls if name == "log" and {"total", None} & _keywords(call)]
    waits = any(name == "wait" for name, _, _ in calls)
    scopes = {scope for _, scope in reduces + logs}
    if reduces and logs and len(scopes) == 1 and logs[-1][0].lineno < reduces[0][0].lineno:
        raise NotYet("all_reduce was called, but after worker.log. Log afterwards.")
    if not waits and any("async_op" in _keywords(call) for call, _ in reduces):
        raise NotYet("with async_op=True all_reduce returns before it has added. Leave async_op out.")
    if total == mine and reduces:
        raise NotYet("all_reduce was called, but total is each rank's own number. It changes only what it is given.")
    if total == mine:
        raise NotYet("each rank's total is its own number: nothing was added up. Which call adds over the ranks?")
    if len(wrong) < 3:
        raise NotYet(f"{named(wrong)} did not get the sum, 14. reduce gives it to one rank, all_reduce to all.")
    if all(math.isclose(value, 14 / 3, rel_tol=1e-5) for value in total):
        raise NotYet("the total is the mean, 14 / 3. all_reduce adds unless it is told otherwise.")
    if total == [6, 6, 6]:
        raise NotYet("6 is the sum of 1, 2 and 3: total holds rank + 1. It is to begin as the square.")
    if total == [42, 42, 42]:
        raise NotYet("42 is 3 times 14: the sum was added up again. Call all_reduce once.")
    raise NotYet(f"{total[wrong[0]]:g}, not 14: not a plain sum of 1, 4 and 9. Look at what changes total, and at op=.")


def _adds_a_power(node):
    """Whether this is `a + b ** c`, with no brackets around the sum."""
    right = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) else None
    return isinstance(right, ast.BinOp) and isinstance(right.op, ast.Pow)


def _keywords(call):
    return {keyword.arg for keyword in call.keywords}


@exercise("00.2")
def _who_left(answer):
    """The answer is the dict `answer`: `{"run": stuck, "rank": ..., "collective": "...", "line": ...}`."""
    if not isinstance(answer, dict):
        raise NotYet(f"the answer is {kind_of(answer)}. {_who_left.__doc__}")
    run = answer.get("run")
    if run is None or run is ...:
        raise NotYet("`run` is the run of the cell above: `stuck`.")
    if not is_run(run):
        raise NotYet(f"`run` is {kind_of(run)}, not a run. It is the run of the cell above: `stuck`.")
    asked = "`run` is to be `stuck`, the run of faults/early_exit_one_rank with stall=4 and check=False."
    where = getattr(run.error, "where", None)
    if not where:
        raise NotYet(f"the run of {run.name} did not hang. {asked}")
    steps = {
        spot["rank"]: max((r["step"] for r in run.ranks[spot["rank"]].records if "step" in r), default=None)
        for spot in where
    }
    if None in steps.values() or len(set(steps.values())) == 1:
        raise NotYet(f"in the run of {run.name} no rank left a loop before the others. {asked}")
    missing = [key for key in ("rank", "collective", "line") if answer.get(key) in (None, ..., "")]
    if missing:
        raise NotYet(f"{missing[0]} is still open. The table in the report on the hang has it.")
    gone = min(steps, key=steps.get)
    spot = next(spot for spot in where if spot["rank"] == gone)
    rank = _whole(answer["rank"], "rank: only the number at the start of its row.")
    line = _whole(answer["line"], "line: only the number behind the colon.")
    if rank != gone:
        raise NotYet(f"rank {rank} is not the one that left. Which rank stands in a call after the loop?")
    if _bare(answer["collective"]) != _bare(spot["collective"]):
        read = " ".join(str(answer["collective"]).split())[:80]
        raise NotYet(f"rank {gone} does not wait in {read}. Read its row, under `waiting in`.")
    if line != spot["line"]:
        raise NotYet(f"rank {gone} does not stand in line {line}. Its row has file:line under `where`.")
    others = ", ".join(f"rank {s['rank']} in {s['collective']}" for s in where if s["rank"] != gone)
    return f"rank {gone} left the loop and waits in {spot['collective']}, line {line}; {others} waits for it."


def _whole(value, hint):
    """A whole number, also as a text of digits, else the hint."""
    try:
        number = int(value)
        if isinstance(value, str) or number == value:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise NotYet(hint)


def _bare(collective):
    """A collective's name as typed by anyone: `dist.barrier()` and `barrier (its 22nd collective)` are barrier."""
    name = re.sub(r"\(its\b.*", "", str(collective).lower(), flags=re.DOTALL)
    return name.strip(" \t\r\n'\"`").removesuffix("()").split(".")[-1]
