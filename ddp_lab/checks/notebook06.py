"""Checks of notebook 06, Gradient accumulation."""

import ast
import math
from numbers import Integral

from ddp_lab.checks.answers import calls_in, ended_well, first, is_run, kind_of, of_ranks, script_of, series, spread
from ddp_lab.checks.verdict import NotYet, exercise
from ddp_lab.errors import InputError

SAME = 1e-9  # of what is computed in float64
NEAR = 1e-5  # of shares, which are float32

IMAGES, EPOCHS, RANKS, MICRO_BATCH, WINDOW = 160, 2, 2, 4, 8  # of 06.1
SHARE = IMAGES // RANKS // MICRO_BATCH  # micro-batches of a rank in an epoch
COUNTS = {
    "micro-batches": EPOCHS * SHARE,
    "accumulate_1": EPOCHS * SHARE,
    "accumulate_2": EPOCHS * (SHARE // WINDOW),
    "accumulate_4": EPOCHS * math.ceil(SHARE / WINDOW),
}


@exercise("06.1")
def _predicted(answer):
    """The answer is a dict of four numbers, with the keys of the starter: `lab.check("06.1", answer)`."""
    if not isinstance(answer, dict) or not set(COUNTS) <= set(answer):
        raise NotYet(f"the answer is {kind_of(answer)}. {_predicted.__doc__}")
    missing = [name for name in COUNTS if answer[name] in (..., None)]
    if missing:
        raise NotYet(f"no number yet for {', '.join(missing)}. How many images has a rank, and how many at a time?")
    for name in COUNTS:
        if isinstance(answer[name], bool) or not isinstance(answer[name], Integral):
            raise NotYet(f"{name} is {kind_of(answer[name])}; give a whole number.")
    _micro_batches(answer["micro-batches"])
    given = answer["accumulate_1"]
    if given == COUNTS["accumulate_2"] or given == COUNTS["accumulate_4"]:
        raise NotYet("accumulate_1 has no no_sync(): what does each backward do there?")
    if given == EPOCHS * (SHARE // WINDOW) * WINDOW:
        raise NotYet("accumulate_1 all-reduces the micro-batches, too, that no step of their epoch uses.")
    if given == 4 * COUNTS["accumulate_1"]:
        raise NotYet("accumulate_1: not one for each parameter. They go together, in a bucket.")
    if given != COUNTS["accumulate_1"]:
        raise NotYet(f"accumulate_1: {given} is not it. There is one all-reduce for each of a rank's micro-batches.")
    for name in ("accumulate_2", "accumulate_4"):
        _windows(name, answer[name])
    return f"{', '.join(f'{name}: {count}' for name, count in COUNTS.items())}."


def _micro_batches(given):
    if given == COUNTS["micro-batches"]:
        return
    if given == SHARE:
        raise NotYet("that is one epoch's micro-batches. There are two epochs.")
    if given == RANKS * COUNTS["micro-batches"]:
        raise NotYet("those are the micro-batches of both ranks. Each has half of the images.")
    if given == COUNTS["accumulate_4"]:
        raise NotYet("those are the windows. A micro-batch is what one forward gets, here 4 images.")
    images = IMAGES // RANKS
    raise NotYet(f"micro-batches: {given} is not it. A rank has {images} images an epoch, and takes 4 at a time.")


def _windows(name, given):
    if given == COUNTS[name]:
        return
    if given == COUNTS["accumulate_1"]:
        raise NotYet(f"{name} has no_sync(): one all-reduce for each window, not for each micro-batch.")
    if given == EPOCHS * SHARE // WINDOW:
        raise NotYet(f"{name}: no window goes over the end of an epoch. i begins anew.")
    if name == "accumulate_2" and given == COUNTS["accumulate_4"]:
        raise NotYet(
            "accumulate_2 does not close the last window of an epoch: what (i + 1) % window leaves is in none."
        )
    if name == "accumulate_4" and given == COUNTS["accumulate_2"]:
        raise NotYet("accumulate_4 closes the last window of an epoch too, which is shorter.")
    if given == RANKS * COUNTS[name]:
        raise NotYet(f"{name}: an all-reduce of two ranks is one call on each. Count those of one rank.")
    raise NotYet(f"{name}: {given} is not it. Windows in an epoch, times the epochs: one all-reduce each.")


def _all_reduces(run, steps):
    """[all-reduces of each rank in each of so many steps] and those after the last, of the rank that has most."""
    try:
        table = run.collectives
    except (InputError, AttributeError):
        raise NotYet("the all-reduces were not counted. Leave --count in the cell's first line.") from None
    rows = table[table["op"] == "all_reduce"]
    own = [rows[rows["rank"] == rank.rank]["step"] for rank in run.ranks]
    counts = [max(int((steps_of == step).sum()) for steps_of in own) for step in range(steps)]
    return counts, max(int(steps_of.isna().sum()) for steps_of in own)


def _shares(run):
    """For each rank the lists that it logged as shares, in the order of the steps."""
    found = []
    for rank in run.ranks:
        own = [(record["step"], record["shares"]) for record in rank.records if {"step", "shares"} <= set(record)]
        if not own or [step for step, _ in own] != list(range(len(own))):
            raise NotYet(f"rank {rank.rank} did not log its shares in steps 0, 1, ... Leave the worker.log(...).")
        found.append([shares for _, shares in own])
    if len(set(map(len, found))) > 1:
        raise NotYet(f"the ranks have done {' and '.join(str(len(own)) for own in found)} steps. Each closes as many.")
    return found


def _apart(found):
    """The first step in which the ranks' shares differ, None if there is none."""
    return first(not all(_equal(step[0], other) for other in step) for step in zip(*found, strict=True))


def _equal(one, other):
    return len(one) == len(other) and all(abs(a - b) <= NEAR for a, b in zip(one, other, strict=True))


@exercise("06.2")
def _context(run):
    """The answer is the run of your cell on 2 ranks: `lab.check("06.2", answer)`."""
    ended_well(run, _context.__doc__)
    of_ranks(run, 2)
    found = _shares(run)
    steps = len(found[0])
    counts, after = _all_reduces(run, steps)
    if not sum(counts) + after:
        raise NotYet(
            "there was no all-reduce at all: each rank steps by itself. The closing micro-batch stands outside."
        )
    if (step := _apart(found)) is not None:
        raise NotYet(
            f"in step {step} the ranks' gradients differ: what gathered in no_sync() was not all-reduced before the "
            "step. Is the micro-batch that closes the window the one that is all-reduced?"
        )
    if (step := first(count > 1 for count in counts)) is not None:
        raise NotYet(
            f"in step {step} each rank has issued {counts[step]} all-reduces, where one would do. "
            "Which micro-batches stand in no_sync()?"
        )
    if after:
        raise NotYet(f"after the last step there were {after} all-reduces more, for no step. A window was not closed.")
    if steps != 6:
        if steps == 4:
            raise NotYet("4 steps, and there are 6 windows: with 10 micro-batches the third of an epoch has two.")
        if steps == 5:
            raise NotYet("5 steps: a window goes over the end of an epoch. `i` and `batches` are of one epoch.")
        raise NotYet(f"{steps} steps, and there are 6 windows: of 4, 4 and 2 micro-batches in each epoch.")
    for step, shares in enumerate(found[0]):
        used, total = sum(share > 0 for share in shares), sum(shares)
        wanted = 4 if step % 3 == 2 else 8
        if used != wanted:
            raise NotYet(f"step {step} has {used} samples, its window has {wanted}. Which micro-batch closes it?")
        if abs(total - 1) > NEAR * 10:
            window = wanted // 2
            raise NotYet(
                f"the shares of step {step} add up to {total:.3g}, not to 1: its window has {window} micro-batches, "
                f"and the losses were divided by {window / total:.3g}. The size is the first thing that is given."
            )
    return "6 steps with one all-reduce each, and in every step the shares add up to 1, in windows of 4, 4 and 2."


LENGTHS = [[1, 3, 2, 5, 1, 2, 2, 4], [4, 1, 2, 2, 1, 2]]  # of 06.3


@exercise("06.3")
def _stream(run):
    """The answer is the run of your cell on 2 ranks: `lab.check("06.3", answer)`."""
    ended_well(run, _stream.__doc__)
    of_ranks(run, 2)
    found = _shares(run)
    steps = len(found[0])
    if steps != 2:
        raise NotYet(f"{steps} steps, and there are two. Leave the loop over STEPS.")
    if (step := _apart(found)) is not None:
        raise NotYet(
            f"in step {step} the ranks' gradients differ. Is the last micro-batch all-reduced, and what comes after it "
            "the same on both? Both must divide by the number of all tokens."
        )
    for step, lengths in enumerate(LENGTHS):
        _one_mean(step, lengths, found[0][step])
    counts, after = _all_reduces(run, steps)
    if sum(counts) + after > 4:
        raise NotYet(
            f"every token weighs the same. But there were {max(counts)} all-reduces in a step, and two do: "
            "of the gradients, and of one number. What is added up over the micro-batches can be sent once."
        )
    if sum(counts) + after < 4:
        raise NotYet("every token weighs the same, but no rank has asked the other how many tokens it has.")
    return "every token weighs 1/20 in step 0 and 1/12 in step 1, with two all-reduces in each."


def _one_mean(step, lengths, shares):
    """A hint unless each of this step's tokens weighs one over their number."""
    count = sum(lengths)
    if len(shares) != count:
        raise NotYet(
            f"step {step} has logged {len(shares)} shares, and it has {count} tokens. Leave the worker.log(...)."
        )
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    weights = [shares[start] for start in starts]  # of each sequence's first token
    ratio = weights[0] * count
    if all(abs(share - weights[0]) <= NEAR for share in shares):
        if abs(ratio - 1) <= 1e-3:
            return
        if abs(ratio - 0.5) <= 1e-3:
            raise NotYet(
                f"in step {step} every token weighs the same, and half of 1/{count}: DDP has divided by the two ranks."
            )
        if abs(ratio - 2) <= 1e-3:
            raise NotYet(f"in step {step} every token weighs twice 1/{count}. Divide by the tokens of both ranks.")
        raise NotYet(
            f"in step {step} every token weighs the same, and {ratio:.3g} times 1/{count}. What divides the sum?"
        )
    of_rank = [sum(lengths[rank::2]) for rank in (0, 1)]
    parts = [weight * of_rank[number % 2] for number, weight in enumerate(weights)]
    if all(abs(part - parts[0]) <= 1e-3 for part in parts):
        raise NotYet(
            f"in step {step} a token of rank 0 weighs {weights[0]:.3g}, of rank 1 {weights[1]:.3g}: each rank has "
            "divided by its own tokens, and DDP takes the mean of that. The number is that of both."
        )
    each = [weight * length for weight, length in zip(weights, lengths, strict=True)]
    if all(abs(one - each[0]) <= NEAR * 10 for one in each):
        raise NotYet(
            f"in step {step} a token that is a sequence by itself weighs {max(weights):.3g}, one of the longest "
            f"{min(weights):.3g}: each loss is a mean over its own tokens. Add up sums, and divide once."
        )
    raise NotYet(
        f"in step {step} a token weighs between {min(shares):.3g} and {max(shares):.3g}; it is to be 1/{count}."
    )


@exercise("06.4")
def _four_mistakes(answer):
    """The answer is a dict of two runs: `lab.check("06.4", {"target": target, "run": answer})`."""
    if not isinstance(answer, dict) or not {"target", "run"} <= set(answer):
        raise NotYet(f"the answer is {kind_of(answer)}. Give both runs. {_four_mistakes.__doc__}")
    target, run = answer["target"], answer["run"]
    if not is_run(target) or not target.ok or len(target.ranks) != 1 or _logged(target, "weights") != 6:
        raise NotYet("`target` is to be the run of one_batch.py, as it stands. Run its cell.")
    ended_well(run, _four_mistakes.__doc__)
    of_ranks(run, 2)
    steps = _logged(run, "weights")
    if steps != 6:
        if steps == 4:
            raise NotYet("4 steps, and the twin has 6. Of each epoch's 10 micro-batches the last two are in no step.")
        raise NotYet(f"{steps} steps, and the twin has 6: windows of 4, 4 and 2 micro-batches in each epoch.")
    weights, rates, losses = (series(run, name, 6) for name in ("weights", "rate", "loss"))
    aims = {name: series(target, name, 6)[0] for name in ("weights", "rate", "loss")}
    if (step := first(gap > SAME for gap in spread(weights))) is not None:
        raise NotYet(f"the ranks' weights differ after step {step}. What is in no_sync(), and what comes after it?")
    if (step := _off(rates[0], aims["rate"])) is not None:
        raise NotYet(
            f"the learning rate of step {step} is {rates[0][step]:.3g}, the twin's {aims['rate'][step]:.3g}. "
            "The schedule counts effective steps."
        )
    if (step := _off(weights[0], aims["weights"])) is not None:
        _weights_off(step, run)
    if (step := first(gap > SAME for gap in spread(losses))) is not None:
        raise NotYet(f"all weights are right. The loss of step {step} is each rank's own: which is that of the step?")
    if (step := _off(losses[0], aims["loss"])) is not None:
        ratio = losses[0][step] / aims["loss"][step]
        what = f" It is {ratio:.3g} times that." if abs(ratio * 4 - round(ratio * 4)) < 1e-6 else ""
        raise NotYet(
            f"all weights are right, and the ranks log one loss. In step {step} it is not that of the whole window, on "
            f"both ranks.{what}"
        )
    counts, after = _all_reduces(run, 6)
    if sum(counts) + after > 12:
        raise NotYet(
            f"all numbers are right, with {max(counts)} all-reduces in a step. Two do: of the gradients, in the "
            "closing micro-batch, and of the loss."
        )
    return "in each of 6 steps weights, rate and loss are those of one process, with two all-reduces in a step."


def _logged(run, name):
    return min((sum(name in record for record in rank.records) for rank in run.ranks), default=0)


def _off(values, wanted):
    return first(not abs(one - other) <= SAME for one, other in zip(values, wanted, strict=True))


def _weights_off(step, run):
    """The hint where the ranks agree, and not with the twin, after this step."""
    if tree := script_of(run):
        _clips(tree)
        _in_order(tree)
    if step in (2, 5):
        raise NotYet(
            f"the weights are the twin's up to step {step - 1}, and not after step {step}, whose window is short. "
            "By how many are its losses divided?"
        )
    if step:
        raise NotYet(f"the weights are the twin's up to step {step - 1}, and not after step {step}. What is left over?")
    raise NotYet("the weights are off from the first step on, on both ranks alike. What else is done per micro-batch?")


def _clips(tree):
    """A hint unless the gradients are clipped, under the condition that the window is closed."""
    calls = [call for name, call, _ in calls_in(tree) if name and name.startswith("clip_grad")]
    if not calls:
        raise NotYet("the weights are off from the twin's, which clips its gradients. Nothing is clipped here.")
    closing = {node for top in ast.walk(tree) if isinstance(top, ast.If) for node in ast.walk(top)}
    if not any(call in closing for call in calls):
        raise NotYet(
            "the gradients are clipped after each micro-batch, where a rank has only its own, and a part of the "
            "window's. When are those of the whole step there?"
        )


def _in_order(tree):
    """A hint if the schedule moves on before the step that it is to follow."""
    lines = {ast.unparse(call.func): call.lineno for name, call, _ in calls_in(tree) if name == "step"}
    schedules = [line for name, line in lines.items() if "sched" in name]
    steps = [line for name, line in lines.items() if "sched" not in name]
    if schedules and steps and schedules[0] < steps[0]:
        raise NotYet(
            "scheduler.step() stands before optimizer.step(), which then takes the next step's rate, and not the one "
            "that was logged. First the step, then the schedule."
        )
