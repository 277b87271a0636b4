"""Checks of notebook 08, first half: buckets and overlap."""

import bisect
import copy
import math
from numbers import Integral, Real

from ddp_lab.checks.answers import calls_in, ended_well, is_run, kind_of, of_ranks, script_of
from ddp_lab.checks.verdict import NotYet, exercise
from ddp_lab.meters.timeline import Trace
from ddp_lab.meters.tracing import FILE, MARK, unquoted

MEANS = [1.5, 15.0, 150.0]  # of 08.1: of 1 and 2, times 10 in each step
LAYERS, HIDDEN = 4, 3  # the gradient of the first layer comes last: nothing is computed any more


@exercise("08.1")
def _early(run):
    """The answer is the run of your cell on 2 ranks: `lab.check("08.1", answer)`."""
    tree = script_of(run) if is_run(run) else None
    called = {name for name, _, _ in calls_in(tree)} if tree else set()
    try:
        ended_well(run, _early.__doc__)
        of_ranks(run, 2)
        if "DistributedDataParallel" in called:
            raise NotYet("DDP does this for you. Here you do it yourself, to see what is in it: leave it out.")
        own = [_gradients(rank) for rank in run.ranks]
        orders = [_orders(run, rank) for rank in (0, 1)]
        for step, mean in enumerate(MEANS):
            for rank, order in enumerate(orders):
                _none_by_luck(order.get(step, ""), called, step, rank)
            _mean([gradients[step] for gradients in own], [order.get(step, "") for order in orders], step, mean)
    except NotYet:
        if "register_hook" in called:
            raise NotYet(
                "register_hook(...) calls you before the gradient is in parameter.grad, so what is sent is not what is "
                "logged. parameter.register_post_accumulate_grad_hook(...) calls you when it is there."
            ) from None
        raise
    for step in range(len(MEANS)):
        for rank, order in enumerate(orders):
            _sent_early(order.get(step, ""), step, rank)
    return f"in each step at least {HIDDEN} of {LAYERS} gradients travel while backward goes on, and the mean is right."


def _gradients(rank):
    """What the rank has logged as gradients: a list for each step, or a hint."""
    found = [record["gradients"] for record in rank.records if {"step", "gradients"} <= record.keys()]
    if len(found) != len(MEANS):
        raise NotYet(f"rank {rank.rank} has logged gradients in {len(found)} steps of {len(MEANS)}. Leave the loop.")
    for step, own in enumerate(found):
        if len(own) != LAYERS or not all(isinstance(number, Real) for number in own):
            raise NotYet(f"in step {step} there are no {LAYERS} gradients. Leave the worker.log(...).")
    return found


_LETTERS = {  # what the profiler calls it: its letter in an order
    "SleepBackward": "L", MARK + "backward": "B", MARK + "wait": "W",
    **dict.fromkeys(["aten::div", "aten::div_", "aten::mul", "aten::mul_"], "D"),
}  # fmt: skip


def _orders(run, rank):
    """{step: what the rank's thread did from its backward on, in this order}, or a hint where there is no trace.

    A letter for each: S it asks for a collective, L it begins a layer's backward, W it waits, D it divides. One thread
    does all of this, so the order is that of the script, however late a rank is and however busy the machine. Times
    are not: when gloo's threads come to send what was asked for, the load decides.
    """
    try:
        trace = Trace(run.dir / f"rank{rank}" / FILE)
    except (OSError, ValueError):
        raise NotYet("the run was not traced. Leave --trace in the cell's first line.") from None
    ends = [(mark.begin, unquoted(mark.name.removeprefix(MARK + "step "))) for mark in trace.marks("step ")]
    own = {mark.thread for mark in trace.marks("step ")}
    found = {}
    for span in trace.spans:
        after = bisect.bisect_left(ends, span.begin, key=lambda end: end[0])
        asks = span.name.startswith("c10d::") and span.name != "c10d::barrier"
        letter = "S" if asks else _LETTERS.get(span.name)
        if letter and span.thread in own and after < len(ends):
            step = str(ends[after][1])
            found[step] = found.get(step, "") + letter
    return {step: found.get(str(step), "").partition("B")[2].replace("B", "") for step in range(len(MEANS))}


def _none_by_luck(order, called, step, rank):
    """A hint if the mean hangs on whether all-reduces have ended that nothing waits for, or are out of sight."""
    sends, waits = order.count("S"), order.partition("S")[2].count("W")
    if not sends and {"Thread", "ThreadPoolExecutor"} & called:
        raise NotYet(
            "what threads of your own send is not in the trace, and in which order the ranks send is luck. "
            "all_reduce(..., async_op=True) needs none: it gives back a work at once."
        )
    if waits < sends and not {"is_completed", "done", "collect_all", "Event"} & called:
        _once(order, step)
        raise NotYet(
            f"in step {step} rank {rank} begins {sends} all-reduces, and waits for {waits}: whether all have "
            "ended when you divide is luck. Keep what each all_reduce gives back, and call wait() of each."
        )
    if _divided_under_way(order) >= HIDDEN and not {"then", "add_done_callback", "is_completed", "done"} & called:
        raise NotYet(
            f"in step {step} rank {rank} divides gradients that are being sent: what comes out is luck. Divide before "
            "you send, or after wait()."
        )


def _divided_under_way(order):
    """How often it divides after it has sent, without a wait in between.

    Where it has waited just before it sent, it may be that one's gradient which it divides: this is not counted.
    """
    count = 0
    for part in order.split("L"):
        before, _, after = part.rpartition("S")
        if "S" in part and "W" not in before:
            count += after.partition("W")[0].count("D")
    return count


def _mean(found, orders, step, mean):
    """A hint unless this mean is the gradient of each layer on both ranks. `found`, `orders`: of each rank."""
    if all(_near(own, [mean] * LAYERS) for own in found):
        return
    for order in orders:
        _once(order, step)
    for own in found:
        if _near(own, [2 * mean] * LAYERS):
            raise NotYet(f"in step {step} the gradients are {own[0]:g}, the sum. Divide by the number of ranks.")
        if _near(own, [mean / 2] * LAYERS):
            raise NotYet(f"in step {step} the gradients are {own[0]:g}: divided twice.")
    numbers = " and ".join(", ".join(f"{number:g}" for number in own) for own in found)
    raise NotYet(
        f"in step {step} the ranks have {numbers}, and the mean is {mean:g}. Were all gradients sent, and "
        "were all waited for, before they are divided and logged?"
    )


def _once(order, step):
    """A hint if more was sent in this step than there are gradients."""
    if order.count("S") > LAYERS:
        raise NotYet(
            f"in step {step} there are {order.count('S')} all-reduces, and {LAYERS} gradients: each is sent once. Is "
            "the one after backward still there? Are hooks registered again in each step?"
        )


def _sent_early(order, step, rank):
    """A hint unless so many all-reduces are under way when the backward of some layer begins."""
    if "S" not in order:
        raise NotYet(f"in step {step} the trace of rank {rank} has no all-reduce.")
    if _travel(order) >= HIDDEN:
        return
    early = order.rpartition("L")[0].count("S")
    if early >= HIDDEN:
        raise NotYet(
            f"in step {step} rank {rank} sends {early} gradients early, but backward stands still until each has "
            "come: all_reduce(..., async_op=True) gives back a work at once; wait for it after backward."
        )
    raise NotYet(
        f"in step {step} rank {rank} sends {early} of its gradients while backward goes on, and {HIDDEN} of "
        f"{LAYERS} can be. Who tells you that a gradient is there? parameter.register_post_accumulate_grad_hook(...)"
    )


def _travel(order):
    """How many are sent and not waited for when a layer's backward begins, if the first sent is waited for first."""
    sent = waited = travelled = count = 0
    for letter in order:
        if letter == "S":
            sent += 1
        elif letter == "W":
            waited = min(waited + 1, sent)
        elif letter == "L":
            count += sent - max(waited, travelled)
            travelled = sent
    return count


def _near(one, other):
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(one, other, strict=True))


RIGHT = {"default": [4, 4], "25": [8], "0.6": [3, 3, 2], "[0.5, 1]": [2, 4, 2]}  # of 08.2
_SIZE_HINTS = {  # {cap: {wrong answer: hint}}
    "default": {
        (8,): "that is the first step, and bucket_cap_mb=25 in all. Without a cap the first bucket has another.",
        (3, 5): "a bucket is closed when it has reached its cap, not before: three layers are less than 1 MiB.",
    },
    "25": {(4, 4): "given explicitly, 25 holds for the first bucket, too: it is not the default."},
    "0.6": {
        (2, 2, 2, 2): "a bucket is closed when it has reached its cap, not before: two layers are less than 0.6 MiB.",
        (2, 3, 3): "in which order are they filled? The first is full before there is a second.",
        (4, 3, 1): "the first bucket has 1 MiB only where no cap is given.",
        (4, 4): "the first bucket has 1 MiB only where no cap is given.",
    },
    "[0.5, 1]": {
        (2, 2, 2, 2): "the last number of the list is for all buckets that follow, not the first.",
        (4, 2, 2): "the first bucket that is sent has the first number.",
        (2, 4, 4): "there are only 8 layers.",
    },
}


@exercise("08.2")
def _sizes(answer):
    """The answer is a dict of four lists of whole numbers: `lab.check("08.2", answer)`."""
    if not isinstance(answer, dict) or not set(RIGHT) & set(answer):
        raise NotYet(f"the answer is {kind_of(answer)}. {_sizes.__doc__}")
    empty = [cap for cap in RIGHT if answer.get(cap) is None or answer[cap] is ...]
    if empty:
        raise NotYet(f"no list yet for {', '.join(empty)}.")
    for cap, right in RIGHT.items():
        given = answer[cap].tolist() if hasattr(answer[cap], "tolist") else answer[cap]  # an array
        if not isinstance(given, (list, tuple)) or not all(_whole(number) for number in given):
            raise NotYet(f"{cap}: {given!r:.60} is no list of whole numbers. How many layers has each bucket?")
        given = list(given)
        if given == right:
            continue
        if hint := _SIZE_HINTS[cap].get(tuple(given)):
            raise NotYet(f"{cap}: {hint}")
        if sum(given) != sum(right):
            raise NotYet(f"{cap}: in all these are {sum(given)} layers, and the model has {sum(right)}.")
        if sorted(given) == sorted(right):
            raise NotYet(f"{cap}: the numbers are right, but not their order: from the bucket that is sent first on.")
        raise NotYet(f"{cap}: {given} is not it. Add up layers of 257 KiB until the cap is reached.")
    return ", ".join(f"{cap}: {sizes}" for cap, sizes in RIGHT.items()) + "."


def _whole(number):
    return isinstance(number, Integral) and not isinstance(number, bool)


CASES = [  # of 08.3: backward, communication, the share that is hidden
    ([(0, 4)], [(1, 2), (3, 5)], 2 / 3),
    ([(0, 4), (6, 10)], [(3, 7)], 0.5),
    ([(0, 4)], [(1, 3), (2, 6)], 0.6),
    ([(6, 10), (0, 4)], [(8, 9), (3, 5)], 2 / 3),
    ([(0, 3), (2, 4)], [(1, 5)], 0.75),
    ([(0, 1)], [(1, 2)], 0.0),
    ([], [(1, 2)], 0.0),
    ([(0, 4)], [(1, 6), (2, 3)], 0.6),
    ([(0, 0.5)], [(0.25, 1)], 1 / 3),
    ([(0, 6), (1, 2), (3, 4)], [(3, 9)], 0.5),
    ([[3, 4], [0, 2]], [[1, 3.5]], 0.6),
    ([(0, 0.0002)], [(0.0001, 0.0003)], 0.5),
]


@exercise("08.3")
def _hidden_share(answer):
    """The answer is your function: `lab.check("08.3", hidden_share)`."""
    if is_run(answer) or isinstance(answer, type) or not callable(answer):
        raise NotYet(f"the answer is {kind_of(answer)}, not a function. {_hidden_share.__doc__}")
    given = [_called(answer, *case[:2]) for case in CASES]
    if len(set(given)) == 1:
        raise NotYet(f"it gives {given[0]:g} whatever it is given. Use its arguments.")
    for what, hint in _SHARES.items():
        if _near(given, [what(*case[:2]) for case in CASES]):
            raise NotYet(hint)
    for number, (backward, communication, right) in enumerate(CASES):
        if not math.isclose(given[number], right, abs_tol=1e-9):
            call = f"hidden_share({backward}, {communication})"
            raise NotYet(f"{call} gives {given[number]:g}, and it is {right:g}. {_ABOUT[number]}")
    if _called(answer, [(0, 1)], []) != 0:
        raise NotYet("where nothing is sent, nothing is hidden: give 0.")
    return "two thirds of the first, and overlapping times count once."


_ABOUT = [
    "How long is sent in all, and how long of that is computed?",
    "Backward may have several parts.",
    "Two that travel at once count once.",
    "The intervals need not be sorted.",
    "Two parts of backward may overlap: what is hidden counts once.",
    "What only touches is not hidden.",
    "Without a backward nothing is hidden.",
    "One interval may lie within another: its end is not that of both.",
    "Times are seconds, not whole numbers.",
    "One interval may lie within another: its end is not that of both.",
    "An interval may be a list of two numbers.",
    "Times are seconds, and an all-reduce may take less than a thousandth of one.",
]


def _length(pairs):
    return sum(end - begin for begin, end in _merged(pairs))


def _merged(pairs):
    found = []
    for begin, end in sorted(pairs):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _common(one, two):
    """How long both go on at once."""
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in _merged(one) for b in _merged(two))


def _twice(one, two):
    """As _common(), but what overlaps in a list counts as often as it is there."""
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in two)


def _met(one, two):
    """As _common(), but where two do not meet the gap between them is taken off."""
    return sum(min(a[1], b[1]) - max(a[0], b[0]) for a in one for b in two)


def _ratio(part, whole):
    return part / whole if whole else 0.0


_SHARES = {
    lambda back, move: _ratio(_common(back, move), _length(back)): "that is the share of backward in which something "
    "is sent. Asked for is the share of the communication.",
    lambda back, move: 1 - _ratio(_common(back, move), _length(move)): "that is what is not hidden.",
    lambda back, move: _common(back, move): "that is how long both go on. Divide by the time of the communication.",
    lambda back, move: _ratio(_twice(back, move), sum(b - a for a, b in move)): "two that travel at once are counted "
    "twice: join overlapping intervals first.",
    lambda back, move: _ratio(_met(_merged(back), _merged(move)), _length(move)): "two intervals that do not meet have "
    "nothing in common: not less than that.",
    lambda back, move: _ratio(_common(_ends(back), _ends(move)), _length(_ends(move))): "it takes all from the first "
    "beginning to the last end. Between the intervals nothing goes on.",
}


def _ends(pairs):
    return [(min(begin for begin, _ in pairs), max(end for _, end in pairs))] if pairs else []


def _called(function, backward, communication):
    """What the function gives, a float; a hint where it gives none."""
    call = f"hidden_share({backward}, {communication})"
    try:
        value = function(copy.deepcopy(backward), copy.deepcopy(communication))  # it may change them
    except ZeroDivisionError:
        raise NotYet(f"{call} divides by 0. Where nothing is sent, give 0.") from None
    except Exception as error:
        raise NotYet(f"your function, called as {call}, raises {type(error).__name__}: {error}.") from None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise NotYet(f"{call} gives {kind_of(value)}. Let it return the share, from 0 to 1.")
    return float(value)
