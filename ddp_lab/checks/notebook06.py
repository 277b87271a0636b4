"""Checks of notebook 06, Gradient accumulation."""

import ast
import math
from numbers import Integral

from ddp_lab.checks.answers import calls_in, ended_well, first, is_run, kind_of, of_ranks, script_of, series, spread
from ddp_lab.checks.verdict import NotYet, exercise
from ddp_lab.errors import InputError

SAME = 1e-9  # of what is computed in float64
NEAR = 1e-5  # of shares, which are float32
ROUNDED = 1e-4  # float32's rounding is below it, a mistake in the loop above
SAME_LOSS = 1e-6  # also where it was added up in float32

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
    if given == RANKS * COUNTS["accumulate_1"]:
        raise NotYet("accumulate_1: an all-reduce of two ranks is one call on each. Count those of one rank.")
    if given == 4 * COUNTS["accumulate_1"]:
        raise NotYet("accumulate_1: not one for each parameter. They go together, in a bucket.")
    if given != COUNTS["accumulate_1"]:
        raise NotYet(f"accumulate_1: {given} is not it. What does a backward do that stands in no no_sync()?")
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
    raise NotYet(
        f"{name}: {given} is not it. Windows that are closed in an epoch, times the epochs: one all-reduce each."
    )


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
        if not own:
            raise NotYet(
                f"rank {rank.rank} has logged no step. Has a micro-batch closed a window? Leave worker.log(...)."
            )
        if [step for step, _ in own] != list(range(len(own))):
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
    if steps == 19:
        raise NotYet(
            "19 steps, one for each micro-batch: each has closed a window. Two things are given, in this order: the "
            "size of the window, and whether this micro-batch closes it."
        )
    counts, after = _all_reduces(run, steps)
    if not sum(counts) + after:
        raise NotYet(
            "there was no all-reduce at all, and each step is to have one. The closing micro-batch stands outside."
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
            raise NotYet(
                "4 steps, and there are 6 windows: of 10 micro-batches the last two are the third, of 9 the last."
            )
        if steps == 5:
            raise NotYet(
                "5 steps, and there are 6 windows. Each epoch has three, also the second with its 9 micro-batches: `i` "
                "and `batches` are of one epoch."
            )
        raise NotYet(f"{steps} steps, and there are 6 windows: of 4, 4 and 2 micro-batches, and of 4, 4 and 1.")
    for step, (window, shares) in enumerate(zip(WINDOWS, found[0], strict=True)):
        _one_window(step, window, [share for share in shares if share])
    windows = ", ".join(map(str, WINDOWS))
    return f"6 steps with {_each(counts)} each, and in every step the shares add up to 1, in windows of {windows}."


WINDOWS = [4, 4, 2, 4, 4, 1]  # micro-batches of one sample in each step of 06.2


def _one_window(step, window, shares):
    """A hint unless these are the shares of a mean over the window, on two ranks."""
    if len(shares) != 2 * window:
        raise NotYet(
            f"step {step} has {len(shares)} samples, its window has {2 * window}. Which micro-batch closes it?"
        )
    if max(shares) - min(shares) > NEAR:
        raise NotYet(
            f"in step {step} a sample weighs {min(shares):.3g}, another {max(shares):.3g}: not all losses of the "
            "window were divided by the same number. Its size is known from its first micro-batch on."
        )
    if abs(sum(shares) - 1) > NEAR * 10:
        its = f"{window} micro-batch{'es' if window > 1 else ''}"
        raise NotYet(
            f"the shares of step {step} add up to {sum(shares):.3g}, not to 1: its window has {its}, and the losses "
            f"were divided by {window / sum(shares):.3g}. The size is the first thing that is given."
        )


def _each(counts):
    """How many all-reduces the steps had: `1 all-reduce`, `1 to 2 all-reduces`."""
    most, least = max(counts), min(counts)
    return f"{'' if most == least else f'{least} to '}{most} all-reduce{'' if most == 1 else 's'}"


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
    others = _others(run, 1, besides=("all_reduce", "broadcast", "barrier"))
    if min(_numbers_sent(run, steps)) <= 20 and not others:  # the gradients alone
        raise NotYet("every token weighs the same, but no rank has asked the other how many tokens it has.")
    if tree := script_of(run):
        if not _knows_its_rank(tree):
            raise NotYet(
                "every token weighs the same, but nothing depends on the rank: each reads all sequences. "
                "Leave stream() as it was."
            )
        if _knows_lengths(tree):
            raise NotYet(
                "every token weighs the same, but the number comes from the lists of which the stream is made: a rank "
                "that reads a stream has none. Count the tokens as they come."
            )
    asked = "".join(f", {count} {op}" for op, count in others.items())
    return f"every token weighs 1/20 in step 0 and 1/12 in step 1, with {_each(counts)}{asked} in a step."


def _others(run, step, besides):
    """{op: how many} of this step's other collectives than `besides`, on the rank that has issued most of them."""
    table = run.collectives
    rows = table[(table["step"] == step) & ~table["op"].isin(besides)]
    return rows.groupby("op")["rank"].agg(lambda ranks: int(ranks.value_counts().max())).to_dict()


def _knows_lengths(tree):
    """Whether the lengths are read besides where the starter reads them: for its loop, in stream(), and for the log."""
    allowed = set()
    for node in ast.walk(tree):
        called = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None))
        if called in ("stream", "log", "enumerate") or (isinstance(node, ast.FunctionDef) and node.name == "stream"):
            allowed |= set(ast.walk(node))
        if isinstance(node, ast.Slice):  # `[0, : sum(lengths)]`, the shares that are logged
            allowed |= set(ast.walk(node))
    return any(node.id in ("lengths", "STEPS") and node not in allowed for node in _loaded(tree))


def _loaded(tree):
    """The names that are read in a script."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]


def _knows_its_rank(tree):
    """Whether anything but the seed depends on the rank, as far as the script shows it; so it does where in doubt."""
    seeds = [call for name, call, _ in calls_in(tree) if name == "manual_seed"]
    skipped = {id(node) for call in seeds for node in ast.walk(call)}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                parts = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    parts = zip(target.elts, node.value.elts, strict=False)
                for one, value in parts:
                    if isinstance(one, ast.Name) and _is_rank(value):
                        names.add(one.id)
                        skipped |= {id(inner) for inner in ast.walk(value)}
    return any(
        _is_rank(node) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names)
        for node in ast.walk(tree)
        if id(node) not in skipped
    )


def _is_rank(node):
    """Whether this asks for the rank: get_rank(), the environment, or a sampler that does."""
    words = ("get_rank", "RANK", "Sampler", "scatter")
    return any(word in ast.unparse(node) for word in words) and isinstance(node, (ast.Call, ast.Subscript))


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
            f"in step {step} every token weighs the same, and {ratio:.3g} times 1/{count}. What has divided the sum "
            "when it is logged?"
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
    numbers = [sum("weights" in record for record in rank.records) for rank in run.ranks]
    if len(set(numbers)) > 1:
        raise NotYet(f"the ranks have logged {' and '.join(map(str, numbers))} steps. Each logs all of its own.")
    steps = numbers[0]
    if steps != 6:
        if not steps:
            raise NotYet("no step was logged. Has a micro-batch closed a window? Leave worker.log(...).")
        if steps == 4:
            raise NotYet("4 steps, and the twin has 6. Of each epoch's 10 micro-batches the last two are in no step.")
        raise NotYet(f"{steps} steps, and the twin has 6: windows of 4, 4 and 2 micro-batches in each epoch.")
    weights, rates, losses = (series(run, name, 6) for name in ("weights", "rate", "loss"))
    aims = {name: series(target, name, 6)[0] for name in ("weights", "rate", "loss")}
    counts, after = _all_reduces(run, 6)
    sent = _numbers_sent(run, 6)
    if (step := first(gap > SAME for gap in spread(weights))) is not None:
        if sent[step] < PARAMETERS:
            raise NotYet(
                f"the ranks' weights differ after step {step}, in which no gradients were all-reduced. Does the "
                "closing micro-batch stand outside of no_sync(), in a model that is wrapped?"
            )
        raise NotYet(
            f"the ranks' weights differ after step {step}. Is it the closing micro-batch that is all-reduced, and is "
            "what comes after it the same on both ranks?"
        )
    if (step := _off(rates[0], aims["rate"])) is not None:
        _nearly(f"the learning rate of step {step}", rates[0][step] - aims["rate"][step])
        if _off(rates[0][:-1], aims["rate"][1:]) is None:
            raise NotYet(
                f"the learning rate of step {step} is the one of the next step. Note it before scheduler.step(), and "
                "do the optimizer's step before it, too."
            )
        raise NotYet(
            f"the learning rate of step {step} is {rates[0][step]:.3g}, the twin's {aims['rate'][step]:.3g}. "
            "The schedule counts effective steps, from lr=0.5 on and up to T_max=6."
        )
    if (step := _off(weights[0], aims["weights"])) is not None:
        _nearly(
            f"the weights after step {step}",
            weights[0][step] - aims["weights"][step],
            ", and clip by clip_grad_norm_()",
        )
        _weights_off(step, run)
    if (step := first(gap > SAME_LOSS for gap in spread(losses))) is not None:
        raise NotYet(
            f"all weights are right. The ranks log different losses of step {step}: which is that of the step?"
        )
    if (step := _off(losses[0], aims["loss"], SAME_LOSS)) is not None:
        ratio = losses[0][step] / aims["loss"][step]
        quarters = round(4 * ratio)
        what = f" It is {ratio:.3g} times that." if quarters != 4 and abs(4 * ratio - quarters) < 1e-5 else ""
        gap = abs(losses[0][step] - aims["loss"][step])
        raise NotYet(
            f"all weights are right, and the ranks log one loss. In step {step} it is off by {gap:.1g} from that of "
            f"the whole window, on both ranks ({SAME_LOSS:.0e} is asked).{what}"
        )
    others = _others(run, 3, besides=("all_reduce", "barrier"))
    counted = _each(counts) + "".join(f", {count} {op}" for op, count in others.items())
    if (step := first(numbers < PARAMETERS for numbers in sent)) is not None:
        raise NotYet(
            f"all numbers are right, but no gradients were all-reduced in step {step} (counted: {counted} in a step). "
            "Each rank is to compute its own share, and DDP brings the gradients together."
        )
    if tree := script_of(run):
        if sizes := _cut_into(tree):
            raise NotYet(
                f"all numbers are right, with {sizes[0]} images at a time, and there is memory for 4. Leave .split(4)."
            )
        if not _knows_its_rank(tree):
            raise NotYet(
                "all numbers are right, but nothing depends on the rank: each computes all images, with "
                f"{counted} in a step. Leave [rank::world_size]."
            )
    if sum(counts) + after > 12:
        raise NotYet(
            f"all numbers are right, with {max(counts)} all-reduces in a step. Two do: of the gradients, in the "
            "closing micro-batch, and of the loss."
        )
    return f"in each of 6 steps weights, rate and loss are those of one process, with {counted} in a step."


PARAMETERS = 64 * 16 + 16 + 16 * 10 + 10  # of 06.4


def _numbers_sent(run, steps):
    """How many numbers rank 0 has handed to all-reduces in each of so many steps."""
    table = run.collectives
    rows = table[(table["op"] == "all_reduce") & (table["rank"] == 0)]
    return [int(rows[rows["step"] == step]["numel"].sum()) for step in range(steps)]


def _cut_into(tree):
    """The sizes other than 4, as far as they are written as numbers, that split() is called with."""
    calls = [call for name, call, _ in calls_in(tree) if name == "split"]
    given = [[arg.value for arg in call.args if isinstance(arg, ast.Constant)] for call in calls]
    return [values[0] for values in given if values and 4 not in values]


def _logged(run, name):
    return min((sum(name in record for record in rank.records) for rank in run.ranks), default=0)


def _off(values, wanted, same=SAME):
    return first(not abs(one - other) <= same for one, other in zip(values, wanted, strict=True))


def _nearly(what, off, or_else=""):
    """A hint for what is off by so little that it is no mistake of the loop."""
    if abs(off) < ROUNDED:
        raise NotYet(
            f"{what}: off by {abs(off):.0e}, and {SAME:.0e} is asked. So near, it is rounding: leave the model, the "
            f"images and what is logged in float64{or_else}."
        )


def _weights_off(step, run):
    """The hint where the ranks agree, and not with the twin, after this step."""
    if step in (2, 5):
        raise NotYet(
            f"the weights are the twin's up to step {step - 1}, and not after step {step}, whose window is short. "
            "By how many are its losses divided?"
        )
    if tree := script_of(run):
        _clips(tree)
        _in_order(tree)
    if step:
        raise NotYet(
            f"the weights are the twin's up to step {step - 1}, and not after step {step}. What is left over from "
            "the step before, and is this one clipped as the twin's is?"
        )
    raise NotYet(
        "the weights are off from the first step on, on both ranks alike. What is divided, clipped and cleared, and "
        "when? Are the same images in the step?"
    )


def _clips(tree):
    """A hint if nothing is clipped, or what is clipped is clipped after each backward as far as the script shows it."""
    calls = [call for name, call, _ in calls_in(tree) if name and name.startswith("clip_grad")]
    if not calls:
        raise NotYet(
            "the weights are off from the twin's, which clips its gradients. No clip_grad_norm_() stands in this cell."
        )
    steps = [call for name, call, _ in calls_in(tree) if name == "step" and "sched" not in ast.unparse(call.func)]
    if steps and all(_follows(tree, call, steps[0]) for call in calls):
        raise NotYet("the gradients are clipped after optimizer.step(), which has used them by then.")
    backwards = [call for name, call, _ in calls_in(tree) if name == "backward"]
    loops = {id(_loop_of(tree, call)) for call in backwards}
    if any(id(_loop_of(tree, call)) in loops and _each_time(tree, call) for call in calls):
        raise NotYet(
            "the gradients are clipped after each micro-batch, where a rank has only its own, and a part of the "
            "window's. When are those of the whole step there?"
        )


def _follows(tree, call, before):
    """Whether a call comes after another in the same loop and under the same conditions."""
    same = all(_around(tree, kind, call) == _around(tree, kind, before) for kind in ((ast.For, ast.While), ast.If))
    return same and call.lineno > before.lineno


def _around(tree, kind, node):
    """The statements of this kind in which a node stands, from the outermost to the innermost."""
    return [top for top in ast.walk(tree) if isinstance(top, kind) and node in ast.walk(top)]


def _loop_of(tree, node):
    """The innermost loop in which a node stands, None if in none."""
    return (_around(tree, (ast.For, ast.While), node) or [None])[-1]


def _each_time(tree, call):
    """Whether its loop comes to this call in each round: no `if` around it, and no `continue` before it."""
    loop = _loop_of(tree, call)
    skips = [node for node in ast.walk(loop) if isinstance(node, ast.Continue)] if loop else []
    return (
        bool(loop)
        and not _around(loop, (ast.If, ast.IfExp, ast.BoolOp), call)
        and not any(skip.lineno < call.lineno for skip in skips)
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
