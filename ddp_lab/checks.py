"""Checks of the learner's answers: one line that says what is right, or what to look at next.

A check reads the answer as a colleague would: it says `done` only for what the task asks, never raises for a
wrong answer, and has a hint of its own for each typical mistake.
"""

import ast
import difflib
import math
import re
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
    """Check the answer to an exercise: `lab.check("00.1", answer)` prints one line and returns a Verdict.

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


def _kind(answer):
    """What an answer is, in words: `nothing`, `an int`, `a dict`."""
    if answer is None or answer is ...:
        return "nothing"
    kind = type(answer).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _is_run(answer):
    return all(hasattr(answer, part) for part in ("ranks", "ok", "error", "frame"))


def _logged(run, name):
    """[the last that each rank logged as `name`, a list of one number as that number; ... where there is nothing]."""
    found = []
    for rank in run.ranks:
        values = [record[name] for record in rank.records if name in record]
        value = values[-1] if values else ...
        found.append(value[0] if isinstance(value, list) and len(value) == 1 else value)
    return found


def _ranks(numbers):
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(map(str, numbers))}"


def _script(run):
    """The syntax tree of the run's script; None if it is not in the run's folder (it was no cell)."""
    try:
        return ast.parse((run.dir / run.name).read_text())
    except (OSError, SyntaxError, ValueError):
        return None


def _calls(tree):
    """[(name of what is called, the call, the function in which it stands)], in the order of the script."""
    found = []

    def visit(node, scope):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                found.append((getattr(child.func, "attr", getattr(child.func, "id", None)), child, scope))
            visit(child, child if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) else scope)

    visit(tree, tree)
    return sorted(found, key=lambda call: (call[1].lineno, call[1].col_offset))


# ---- 00 Start here


# What brings the numbers of other ranks. A barrier only waits, and a broadcast adds nothing.
_BRING = re.compile(r"(all_)?(reduce|gather|to_all)|i?recv|batch_isend_irecv")


@exercise("00.1")
def _add_squares(run):
    """The answer is the run of your cell on 3 ranks: `lab.check("00.1", answer)`."""
    if isinstance(run, dict) and "collective" in run:
        raise NotYet("`answer` is the answer to 00.2 by now. Run your cell of 00.1 again, then this check.")
    if not _is_run(run):
        raise NotYet(f"the answer is {_kind(run)}, not a run. {_add_squares.__doc__}")
    if getattr(run.error, "where", None):
        raise NotYet("the run hung. What one rank calls as a collective, all must call: read where each rank stood.")
    if not run.ok:
        what = (str(run.error).splitlines() or [type(run.error).__name__])[0]
        raise NotYet(f"the run failed ({what}). Mend that first.")
    if (count := len(run.ranks)) != 3:
        ranks = "1 rank" if count == 1 else f"{count} ranks"
        raise NotYet(f"the run had {ranks}. Write --nproc 3 in the first line of the cell.")
    tree = _script(run)
    calls = _calls(tree) if tree else []
    names = {name for name, _, _ in calls}
    reduces = tree is None or "all_reduce" in names  # a script that is not there may do so
    mine, total = _logged(run, "mine"), _logged(run, "total")
    for name, values in (("mine", mine), ("total", total)):
        _numbers(name, values, "all_reduce" if reduces else "reduce" if "reduce" in names else None)
    _own_numbers(mine, total, tree, reduces)
    _sums(mine, total, tree, calls)
    if tree and not any(name and _BRING.match(name) for name in names):
        raise NotYet("14 is right, but no rank asked the others for it: there is no all_reduce in the script.")
    return "3 ranks added 1, 4 and 9, and the total is 14 on each."


def _numbers(name, values, call):
    """A hint unless every rank has logged a number. `call`: what may have returned None."""
    if call and values.count(None) == len(values):
        raise NotYet(f"{name} is None: {call} returns nothing, it changes its argument.")
    silent = [rank for rank, value in enumerate(values) if value is ...]
    if silent:
        raise NotYet(f"{_ranks(silent)} logged no number as {name}. Every rank calls worker.log(mine=..., total=...).")
    for rank, value in enumerate(values):
        if not isinstance(value, (int, float)):
            raise NotYet(f"rank {rank} logged {str(value)[:40]!r} as {name}, {_kind(value)}. It is to be one number.")


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
        raise NotYet(f"{_ranks(wrong)} did not get the sum, 14. reduce gives it to one rank, all_reduce to all.")
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
        raise NotYet(f"the answer is {_kind(answer)}. {_who_left.__doc__}")
    run = answer.get("run")
    if run is None or run is ...:
        raise NotYet("`run` is the run of the cell above: `stuck`.")
    if not _is_run(run):
        raise NotYet(f"`run` is {_kind(run)}, not a run. It is the run of the cell above: `stuck`.")
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
