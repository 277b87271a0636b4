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


def _ended_well(run, doc):
    """A hint unless this is a run that ended well. `doc`: what the answer should be."""
    if not _is_run(run):
        raise NotYet(f"the answer is {_kind(run)}, not a run. {doc}")
    if getattr(run.error, "where", None):
        raise NotYet("the run hung. What one rank calls as a collective, all must call: read where each rank stood.")
    if not run.ok:
        what = (str(run.error).splitlines() or [type(run.error).__name__])[0]
        raise NotYet(f"the run failed ({what}). Mend that first.")


def _of_ranks(run, number):
    """A hint unless the run had so many ranks."""
    if (count := len(run.ranks)) != number:
        ranks = "1 rank" if count == 1 else f"{count} ranks"
        raise NotYet(f"the run had {ranks}. Write --nproc {number} in the first line of the cell.")


def _series(run, name, steps):
    """For each rank the list of what it logged as `name`, one number in each of so many steps, else a hint."""
    found = []
    for rank in run.ranks:
        values = {record["step"]: record[name] for record in rank.records if name in record and "step" in record}
        if sorted(values, key=str) != sorted(range(steps), key=str):
            raise NotYet(
                f"rank {rank.rank} logged {name} in {len(values)} of the {steps} steps. "
                f"Leave the loop and its worker.log(step=step, ...) as they were."
            )
        for step, value in values.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise NotYet(f"in step {step} rank {rank.rank} logged {str(value)[:40]!r} as {name}, not a number.")
        found.append([values[step] for step in range(steps)])
    return found


def _spread(values):
    """How far the ranks are apart in each step: of a list for each rank. A NaN is apart from everything."""
    return [max(step) - min(step) if all(map(math.isfinite, step)) else math.inf for step in zip(*values, strict=True)]


def _first(where):
    """The number of the first that is true, None if none is."""
    return next((number for number, true in enumerate(where) if true), None)


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
    """[(name of what is called, the call, the function in which it stands)], in the order of the script.

    The name is the one that it has where it comes from: `DDP`, imported as that, is DistributedDataParallel.
    """
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = {alias.asname: alias.name for node in imports for alias in node.names if alias.asname}
    found = []

    def visit(node, scope):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call):
                name = getattr(child.func, "attr", getattr(child.func, "id", None))
                found.append((own.get(name, name), child, scope))
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
    _ended_well(run, _add_squares.__doc__)
    _of_ranks(run, 3)
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


# ---- 03 Setting up DDP

SAME = 1e-9  # what the scripts compute in float64 rounds far below, and every mistake moves more


@exercise("03.1")
def _average_by_hand(run):
    """The answer is the run of your cell on 3 ranks: `lab.check("03.1", answer)`."""
    _ended_well(run, _average_by_hand.__doc__)
    _of_ranks(run, 3)
    tree = _script(run)
    calls = [(name, call.lineno) for name, call, _ in _calls(tree)] if tree else []
    names = [name for name, _ in calls]
    if "DistributedDataParallel" in names:
        raise NotYet("DistributedDataParallel does it, but here it is to be done by hand: two calls of dist.")
    drawn = _logged(run, "drawn")
    if not all(isinstance(value, (int, float)) for value in drawn):
        raise NotYet("a rank did not log what it has drawn. Leave worker.log(drawn=...) where it was.")
    if len(set(drawn)) < 3:
        raise NotYet("two ranks have drawn the same weight. Leave torch.manual_seed(rank), and send rank 0's weight.")
    weights, gradients = _series(run, "weight", 8), _series(run, "gradient", 8)
    twin, expected = [drawn[0]], []
    for _ in range(8):
        expected.append(2 * (twin[-1] - 2))  # the data of the three ranks ask for 1, 2 and 3
        twin.append(twin[-1] - 0.25 * expected[-1])
    gaps = {"weight": _spread(weights), "gradient": _spread(gradients)}
    equal = {name: max(gap) <= SAME for name, gap in gaps.items()}
    right = {
        "weight": all(_near(own, twin[1:]) for own in weights),
        "gradient": all(_near(own, expected) for own in gradients),
    }
    begun = [weight[0] + 0.25 * gradient[0] for weight, gradient in zip(weights, gradients, strict=True)]
    if not equal["gradient"]:
        _own_gradients(calls, drawn, begun, equal["weight"], right["weight"], weights)
    if not equal["weight"]:
        raise NotYet(
            "the gradients are equal, the weights are not: equal steps keep the distance with which the ranks began. "
            "Rank 0's weight is to be sent to all before the loop."
        )
    if not all(right.values()):
        _not_the_mean(begun[0], drawn[0], gradients[0][0])
    if tree and not any(name and _BRING.match(name) for name in names):
        raise NotYet("the numbers are right, but no rank asked the others for theirs: no all_reduce in the script.")
    return f"in each of 8 steps 3 ranks have the gradient and the weight of one process; the last is {twin[-1]:.4f}."


def _near(values, expected):
    return all(abs(value - other) <= SAME for value, other in zip(values, expected, strict=True))


def _own_gradients(calls, drawn, begun, equal, right, weights):
    """The hint where each rank still has a gradient of its own."""
    lines = {name: line for name, line in calls}
    reduced = lines.get("all_reduce")
    if equal and right and reduced and reduced < lines.get("step", 0):
        raise NotYet("the weights are right; the gradient was logged before it was averaged. Average above the log.")
    if equal and right:
        raise NotYet("the weights are right, but it is they that were averaged. DDP averages gradients, before step().")
    if equal and _near(weights[0], [1 + (drawn[0] - 1) * 0.5**step for step in range(1, 9)]):
        raise NotYet("all have rank 0's weight in every step, and it has learned from rank 0's data alone, towards 1.")
    if equal:
        raise NotYet("the weights are equal, the gradients are not. Average the gradients, and before step().")
    if _near(begun, drawn):
        if reduced:
            raise NotYet(
                "each rank keeps its own gradient and its own weight. all_reduce changes what it is given, in place: "
                "give it weight.grad, after backward() and before the log."
            )
        raise NotYet(
            "each rank trains alone: other weights from the start, other gradients in every step. "
            "Send rank 0's weight to all, then average the gradients in each step."
        )
    if reduced and reduced > lines.get("step", reduced):
        raise NotYet("all_reduce comes after step(), which has used each rank's own gradient. Average before it.")
    raise NotYet(
        "all begin with one weight and drift apart from step 0 on: each rank still has a gradient of its own. "
        "Add them up over the ranks, in place, after backward()."
    )


def _not_the_mean(begun, drawn, gradient):
    """The hint where the ranks agree, but not on what one process would have."""
    if abs(begun - drawn) > SAME:
        raise NotYet(f"the ranks agree, but began with {begun:.3f}, and rank 0 had drawn {drawn:.3f}. Send rank 0's.")
    times = gradient / (2 * (begun - 2))
    if math.isclose(times, 3, rel_tol=1e-6):
        raise NotYet("the gradient is 3 times what one process has: it is the sum. DDP takes the mean.")
    if math.isclose(times, 1, rel_tol=1e-6):
        raise NotYet("step 0 is right, and later steps are not. Do the same in every step, and once.")
    raise NotYet(f"the gradient is {times:.3g} times what one process has. Divide the sum by the number of ranks.")


@exercise("03.2")
def _to_ddp(answer):
    """The answer is both runs in a dict: `{"target": target, "run": answer}`."""
    if _is_run(answer):
        raise NotYet('the answer is a run alone. Give both: {"target": target, "run": answer}.')
    if not isinstance(answer, dict):
        raise NotYet(f"the answer is {_kind(answer)}. {_to_ddp.__doc__}")
    target, run = answer.get("target"), answer.get("run")
    if not _is_run(target) or len(target.ranks) != 1 or not _reads(target.ranks[0]):
        raise NotYet("`target` is to be the run of one_process.py, the cell above your `answer`.")
    _ended_well(run, _to_ddp.__doc__)
    if len(run.ranks) == 1:
        raise NotYet("the run had 1 rank. Write --nproc 2 in the first line of the cell.")
    (aim,), reads = [_reads(rank) for rank in target.ranks], [_reads(rank) for rank in run.ranks]
    tree = _script(run)
    names = {name for name, _, _ in _calls(tree)} if tree else None
    _shared_out(aim, reads, names)
    steps = len(aim)
    weights, (wanted,) = _series(run, "weights", steps), _series(target, "weights", steps)
    _one_model(_spread(weights), names)
    worst = max(abs(value - other) for own in weights for value, other in zip(own, wanted, strict=True))
    if not worst <= SAME:
        if worst < 1e-2:
            raise NotYet(f"the ranks are {worst:.0e} from the target: close, not equal. Did .double() stay everywhere?")
        raise NotYet(
            "the ranks agree, and yet differ from the target. Is everything else as it was: rank 0's seed, the rate, "
            "the mean in the loss?"
        )
    if names is not None and not names & {"DistributedDataParallel", "all_reduce"}:
        raise NotYet("the weights are right, but nothing in the script averages over ranks: there is no wrap.")
    if names is not None and "destroy_process_group" not in names:
        raise NotYet("all numbers are right. One line is missing, the last: leave the group.")
    count = len(reads[0][0]) * steps
    return (
        f"{len(reads)} ranks read {count} samples each, none twice, and in each of {steps} steps "
        f"they have the weights of one process (largest difference {worst:.0e})."
    )


def _reads(rank):
    """[the samples that it read, for each step in which it logged some]."""
    reads = {}
    for record in rank.records:
        if "samples" in record and "step" in record:
            listed = record["samples"] if isinstance(record["samples"], list) else [record["samples"]]
            reads[record["step"]] = listed
    return [reads[step] for step in sorted(reads)]


def _shared_out(aim, reads, names):
    """A hint unless the ranks together read in each step what the target read, each sample once."""
    for rank, own in enumerate(reads):
        if not own:
            raise NotYet(
                f"rank {rank} logged no samples. Leave worker.log(step=step, samples=..., weights=...) as it was."
            )
    everything = sorted(sum(aim, []))
    if all(sorted(sum(own, [])) == everything for own in reads):
        if names is not None and "init_process_group" not in names:
            raise NotYet(
                f"the weights may be right, but each rank trained on all {len(everything)} samples, alone: "
                "no rank has joined a group."
            )
        raise NotYet(f"each rank reads all {len(everything)} samples. What shares them out?")
    together, wanted = sum(len(own[0]) for own in reads), len(aim[0])
    if together != wanted:
        raise NotYet(
            f"in step 0 the ranks read {together} samples together, the target {wanted}. "
            "A loader's batch_size is that of its rank."
        )
    for step, samples in enumerate(aim):
        read = sorted(sample for own in reads if step < len(own) for sample in own[step])
        if read != sorted(samples):
            why = ""
            if names is None or "DistributedSampler" in names:
                why = " DistributedSampler shuffles, unless it is told not to."
            raise NotYet(f"in step {step} the ranks read {read}, the target {sorted(samples)}.{why}")


def _one_model(apart, names):
    """A hint unless the ranks have the same weights in every step."""
    step = _first(gap > SAME for gap in apart)
    if step is None:
        return
    if names is not None and "DistributedDataParallel" not in names:
        raise NotYet(f"the ranks' weights are apart after step {step}: nothing averages their gradients.")
    raise NotYet(
        f"the ranks' weights are apart after step {step}, though there is a wrap. "
        "Does the loss come from the wrapper, or from the model inside?"
    )


LAYERS = {"1.weight": (64, 64), "1.bias": (64,), "3.weight": (10, 64), "3.bias": (10,)}  # of models.mlp()


@exercise("03.3")
def _save_once(run):
    """The answer is the run of your cell: `lab.check("03.3", answer)`."""
    _ended_well(run, _save_once.__doc__)
    if len(run.ranks) == 1:
        raise NotYet("the run had 1 rank. Write --nproc 2 in the first line of the cell.")
    weights = _logged(run, "weights")
    if not all(isinstance(value, (int, float)) for value in weights):
        raise NotYet("a rank did not log its weights. Leave worker.log(weights=...) where it was, after the loop.")
    if max(weights) != min(weights):
        raise NotYet("the ranks' models differ by now. Leave the training as it was.")
    writers = [rank.rank for rank in run.ranks if len(rank.saved)]
    if not writers:
        raise NotYet('no rank has saved anything. One rank is to call worker.save("checkpoint", ...).')
    if len(writers) > 1:
        raise NotYet(f"{_ranks(writers)} have saved, into one file they would write at the same time. One is enough.")
    if writers != [0]:
        raise NotYet(f"rank {writers[0]} has saved. It would do, but on every job there is a rank 0: let it be that.")
    saved = run.ranks[0].saved
    if "checkpoint" not in saved:
        raise NotYet(f"it was saved as {', '.join(saved)}. Give it the name checkpoint.")
    _loads(saved["checkpoint"], weights[0])
    count = sum(math.prod(shape) for shape in LAYERS.values())
    return f"rank 0 alone saved {len(LAYERS)} tensors, {count:,} numbers, as a bare mlp() names them: the trained ones."


def _loads(state, weights):
    """A hint unless a bare model would load this strictly, and had the trained weights then."""
    if state is None:
        raise NotYet(
            "None was saved. consume_prefix_in_state_dict_if_present changes its argument and returns nothing."
        )
    if not isinstance(state, dict) or not all(hasattr(value, "shape") for value in state.values()):
        raise NotYet("what was saved is no dict of names and tensors. Save the model's state_dict() itself.")
    if all(name.startswith("module.") for name in state):
        raise NotYet(f'the names begin with "module." ({min(state)}): they are those of the wrapper.')
    missing, more = [name for name in LAYERS if name not in state], [name for name in state if name not in LAYERS]
    if missing or more:
        what = f"it lacks {', '.join(missing)}" if missing else f"it has {', '.join(more)} too"
        raise NotYet(f"a bare mlp() would not load this: {what}.")
    for name, shape in LAYERS.items():
        if tuple(state[name].shape) != shape:
            raise NotYet(f"{name} has the shape {tuple(state[name].shape)}, in a bare mlp() {shape}.")
    held = sum(float(abs(value.astype("float64")).sum()) for value in state.values())
    if not math.isclose(held, weights, rel_tol=1e-9):
        raise NotYet(
            f"these are not the trained weights: their sizes add up to {held:.3f}, those of the model at the end "
            f"to {weights:.3f}. When was it saved?"
        )


@exercise("03.4")
def _silent_faults(run):
    """The answer is the run of your cell: `lab.check("03.4", answer)`."""
    _ended_well(run, _silent_faults.__doc__)
    if len(run.ranks) == 1:
        raise NotYet("the run had 1 rank. Write --nproc 2 in the first line of the cell.")
    body, head, gradient, loss = (_series(run, name, 6) for name in ("body", "head", "gradient", "loss"))
    apart = {"body": _spread(body), "head": _spread(head)}
    start = max(apart["body"][0], apart["head"][0])
    if start > SAME:
        raise NotYet(
            f"in step 0, before anything was trained, the ranks are {start:.2g} apart: "
            "only rank 0 has the saved weights. When does DDP send its weights?"
        )
    if not math.isclose(body[0][0], 2) or not math.isclose(head[0][0], 2):
        raise NotYet("the ranks agree, but do not begin with the saved weights, whose sizes add up to 2 in each layer.")
    if min(_spread(loss)) <= SAME:
        raise NotYet("the ranks have the same loss in a step: each is to keep data of its own.")
    late = _first(gap > SAME for gap in map(max, apart["body"], apart["head"]))
    if late is not None:
        layer = max(apart, key=lambda name: apart[name][late])
        raise NotYet(
            f"equal up to step {late - 1}, and {apart[layer][late]:.2g} apart in step {late}, in the {layer}. "
            "What was trained for the first time just before, and does the wrap know of it?"
        )
    if max(_spread(gradient)) > SAME:
        raise NotYet("the weights are equal, the gradients are not: that hides the fault. Let DDP average them.")
    if body[0][3] != body[0][0]:
        raise NotYet("the body has changed before step 3. It is to stay frozen until then.")
    if body[0][5] == body[0][3]:
        raise NotYet("the body is no longer trained: it is the same in step 5 as in step 3.")
    return "the ranks begin with the saved weights and are 0 apart in all 6 steps, body and head."
