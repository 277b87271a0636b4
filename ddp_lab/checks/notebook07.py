"""Checks of notebook 07, Communication hooks."""

import ast
import math
import re
from numbers import Real

from ddp_lab.checks.answers import BRING, calls_in, ended_well, first, is_run, kind_of, of_ranks, script_of
from ddp_lab.checks.verdict import NotYet, exercise
from ddp_lab.errors import InputError

NEAR = 1e-6  # relative, of float32
BRINGS = re.compile("reduce|gather|to_all|recv")  # in the name of a call: a group's own are allreduce and allgather


def _lists(run, name):
    """For each rank the lists of numbers that it logged under this name, in the order of the steps 0, 1, ..."""
    found = []
    for rank in run.ranks:
        own = [(record["step"], record[name]) for record in rank.records if {"step", name} <= set(record)]
        if not own or [step for step, _ in own] != list(range(len(own))):
            raise NotYet(
                f"rank {rank.rank} did not log {name} in steps 0, 1, ... Leave the loop and its worker.log(...)."
            )
        found.append([numbers for _, numbers in own])
    if len(set(map(len, found))) > 1:
        raise NotYet("the ranks have logged unequal numbers of steps. Leave the loop as it was.")
    return found


def _collectives(run, step):
    """[rows of the collectives that bring numbers of other ranks, in this step] of each rank."""
    try:
        table = run.collectives
    except (InputError, AttributeError):
        raise NotYet("the collectives were not counted. Leave --count in the cell's first line.") from None
    rows = table[(table["step"] == step) & table["op"].map(lambda op: bool(BRING.match(op)))]
    return [rows[rows["rank"] == rank.rank] for rank in run.ranks]


def _same(one, other, rel=NEAR):
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=rel) for a, b in zip(one, other, strict=True))


def _own_hook(run, shipped):
    """A hint unless the script registers a hook, and one that it has written itself."""
    if not (tree := script_of(run)):
        return
    called = {name for name, _, _ in calls_in(tree)}
    if "register_comm_hook" not in called:
        raise NotYet("the numbers are DDP's own: no hook was registered. Leave model.register_comm_hook(...).")
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}  # a name may be that of torch's
    names = {getattr(node, "id", getattr(node, "attr", getattr(node, "name", ""))) for node in nodes}
    if used := next((name for name in shipped if name in names - own), None):
        raise NotYet(f"{used} is torch's. It does this, but write your own, to see what is in it.")
    hooks = _hooks(tree)
    if all(hooks) and not any(BRINGS.search(name or "") for hook in hooks for name, _, _ in _reached(tree, hook)):
        raise NotYet("the numbers are right, but not the hook's: no collective is called in it.")


def _hooks(tree):
    """What the script registers: for each call its function, or None."""
    return [_function(tree, call) for name, call, _ in calls_in(tree) if name == "register_comm_hook"]


def _function(tree, call):
    """The function of the script, or the lambda, that this call registers as a hook; None where it is not seen."""
    given = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "hook")]
    if not given or isinstance(given[0], ast.Lambda):
        return given[0] if given else None
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == getattr(given[0], "id", "")]
    return found[-1] if found else None


def _reached(tree, function):
    """The calls in a function of the script, and in those of the script that it calls."""
    own = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    seen, left, calls = set(), [function], []
    while left:
        if (node := left.pop()) not in seen:
            seen.add(node)
            calls += calls_in(node)
            left += [own[name] for name, _, _ in calls_in(node) if name in own]
    return calls


def _well(run, doc):
    """ended_well(), and before it hints of how a hook's mistakes end, of which torch says little."""
    if is_run(run) and getattr(run.error, "where", None):
        raise NotYet(
            "the run hung: backward() waits for what is in each hook's future. Nothing has come into one, or one rank "
            "has called a collective alone."
        )
    if is_run(run) and run.error is not None:
        said, tree = str(run.error), script_of(run)
        hooks = _hooks(tree) if tree else []
        if any(isinstance(hook, ast.FunctionDef) and not _returns(hook) for hook in hooks):
            raise NotYet("the hook returns nothing: DDP takes that for a future, and dies of it. Return the future.")
        if "expected the hook result is a PyObject" in said:
            raise NotYet(
                "the hook returns the collective's own future, whose value is a list. Return what its .then() gives."
            )
        if "must return a torch.futures.Future object" in said:
            got = said.partition("but got ")[2].split()
            raise NotYet(f"the hook returns a {got[0].rpartition('.')[2] if got else 'value'}. DDP wants a future.")
        if "'NoneType' object has no attribute 'get_future'" in said:
            raise NotYet("a collective gives its work back, which has the future, with async_op=True alone.")
        if "unsupported operand type(s)" in said and "'list'" in said:
            raise NotYet("the value of a collective's future is a list of tensors: take the first, [0].")
    ended_well(run, doc)


def _returns(function):
    """Whether this function itself, not one within it, has a `return` with a value."""
    left = list(function.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            return True
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            left += ast.iter_child_nodes(node)
    return False


MEANS = [[1.5] * 2, [15.0] * 2, [150.0] * 2]  # of 07.1: of 1 and 2, times 10 in each step


@exercise("07.1")
def _default_hook(run):
    """The answer is the run of your cell on 2 ranks: `lab.check("07.1", answer)`."""
    _well(run, _default_hook.__doc__)
    of_ranks(run, 2)
    found = _lists(run, "gradients")
    if len(found[0]) != len(MEANS):
        raise NotYet(f"{len(found[0])} steps, and there are {len(MEANS)}. Leave the loop.")
    for step, mean in enumerate(MEANS):
        _one_step(step, mean, [own[step] for own in found])
    _own_hook(run, ["allreduce_hook", "_allreduce_fut"])
    counts = [[len(rows) for rows in _collectives(run, step)] for step in (1, 2)]
    if not min(map(min, counts)):
        raise NotYet("the numbers are right, but in a step no rank has asked the other for its gradient.")
    return f"the mean of both ranks, in {len(MEANS)} steps, with {max(map(max, counts))} collectives in the last."


def _one_step(step, mean, found):
    """A hint unless all ranks have the mean."""
    if (at := _unlike(found)) is not None:
        pair, own = [numbers[at] for numbers in found], [rank * 10**step for rank in (1, 2)]  # of each rank alone
        told = f"in step {step} the ranks have different gradients, {pair[0]:g} and {pair[1]:g}"
        if _same(pair, own) or _same(pair, [number / 2 for number in own]):
            raise NotYet(
                f"{told}: what a hook gives back is taken as it is, and yours has not added up the ranks', or has not "
                "waited for the sum."
            )
        raise NotYet(f"{told}. Each rank has to have the same sum, and to divide it by the same number.")
    own = found[0]
    if _same(own, mean):
        return
    if len(own) == len(mean) and all(map(math.isfinite, own)):
        if _same(own, [2 * number for number in mean]):
            raise NotYet(f"in step {step} the gradient is the sum, {own[0]:g}. With a hook DDP does not divide.")
        if _same(own, [number / 2 for number in mean]):
            raise NotYet(f"in step {step} the gradient is half of the mean, {own[0]:g}. It was divided twice.")
        if not any(own):
            raise NotYet(f"in step {step} the gradient is 0. The future has to be of the bucket's numbers.")
    numbers = ", ".join(f"{number:g}" for number in own[:4])
    raise NotYet(f"in step {step} the gradients are {numbers}, and the mean of the ranks is {mean[0]:g}.")


def _unlike(found):
    """The first place at which the ranks' numbers differ, or None."""
    return first(not _same([numbers[0]] * len(numbers), numbers) for numbers in zip(*found, strict=True))


WIDTH, RANK, SHARE = 256, 2, 0.01  # of 07.2
_SHAPES = [(WIDTH, 64), (WIDTH, WIDTH), (10, WIDTH)]  # of the weights, outputs x inputs
_WEIGHTS = sum(rows * columns for rows, columns in _SHAPES)
_BIASES, _INPUTS = (sum(shape[side] for shape in _SHAPES) for side in (0, 1))
_KEPT = round(SHARE * (_WEIGHTS + _BIASES))
BYTES = {
    "none": 4 * (_WEIGHTS + _BIASES),
    "fp16": 2 * (_WEIGHTS + _BIASES),
    "powersgd": 4 * (_BIASES + RANK * (_BIASES + _INPUTS)),
    "topk": (4 + 4) * _KEPT,
}
_BYTE_HINTS = {  # {hook: {wrong number: hint}}
    "none": {
        4 * _WEIGHTS: "that is without the biases.",
        _WEIGHTS + _BIASES: "that is how many numbers there are. Each has four bytes.",
    },
    "fp16": {
        BYTES["none"]: "its numbers have two bytes each.",
        _WEIGHTS + _BIASES: "that is how many numbers there are. Each has two bytes.",
        BYTES["none"] // 4: "that is how many numbers there are. Each has two bytes.",
    },
    "powersgd": {
        4 * RANK * (_BIASES + _INPUTS): "those are P and Q. The biases, which are no matrices, are sent whole.",
        4 * (_BIASES + _BIASES + _INPUTS): "that is rank 1. Of rank 2, P and Q have two columns each.",
        BYTES["powersgd"] // 4: "that is how many numbers there are. They are sent as float32.",
        2 * (BYTES["powersgd"] // 4): "P and Q are sent as float32: four bytes each.",
        4 * (_BIASES + RANK * _BIASES): "there is Q besides P.",
        4 * (_BIASES + RANK * _INPUTS): "there is P besides Q.",
    },
    "topk": {
        4 * _KEPT: "the other rank must learn of each number, too, where it belongs.",
        12 * _KEPT: "the places are sent as int32, not as int64: see the hook's source.",
        _KEPT: "that is how many numbers are sent. Each has four bytes, and so has its place.",
        8 * (_KEPT + 1): "one number more than are sent: it is rounded, not rounded up.",
    },
}


@exercise("07.2")
def _predicted(answer):
    """The answer is a dict of four numbers, with the keys of the starter: `lab.check("07.2", answer)`."""
    if not isinstance(answer, dict) or not set(BYTES) <= set(answer):
        raise NotYet(f"the answer is {kind_of(answer)}. {_predicted.__doc__}")
    if missing := [name for name in BYTES if answer[name] in (..., None)]:
        raise NotYet(f"no number yet for {', '.join(missing)}. How many numbers has the gradient?")
    for name, right in BYTES.items():
        given = answer[name]
        if isinstance(given, bool) or not isinstance(given, Real) or given % 1:  # 2 * n / 2 is a float, and whole
            raise NotYet(f"{name} is {kind_of(given)}; give a whole number of bytes.")
        if given == right:
            continue
        if hint := _BYTE_HINTS[name].get(int(given)):
            raise NotYet(f"{name}: {hint}")
        if given == 2 * right:
            raise NotYet(f"{name}: twice too many. Count what one rank hands in.")
        if given == 8 * right:
            raise NotYet(f"{name}: eight times too many. Give bytes, not bits.")
        raise NotYet(f"{name}: {given} is not it. How many numbers are handed in, and how many bytes has each?")
    return f"{', '.join(f'{name}: {size}' for name, size in BYTES.items())} bytes."


CASES = [  # of 07.3: seconds, bytes of the whole gradient, bytes that are sent, bit/s
    (0.01, 2_500_000, 1_250_000, 1e9),
    (0.02, 4_000_000, 40_000, 1.584e9),
    (0.25, 1_000_000, 500_000, 16e6),
]


@exercise("07.3")
def _break_even(answer):
    """The answer is your function: `lab.check("07.3", break_even)`."""
    if is_run(answer) or isinstance(answer, type) or not callable(answer):
        raise NotYet(f"the answer is {kind_of(answer)}, not a function. {_break_even.__doc__}")
    given = [_called(answer, case[:3]) for case in CASES]
    right = [case[3] for case in CASES]
    if not _same(given, right):
        if len(set(given)) == 1:
            raise NotYet(f"it gives {given[0]:g} whatever it is given. Use its arguments.")
        for what, hint in _RATES.items():
            if _same(given, [what(*case[:3]) for case in CASES]):
                raise NotYet(hint)
        raise NotYet(
            f"break_even{CASES[0][:3]} gives {given[0]:g}, and it is {right[0]:g}: at which rate do the bytes "
            "that are saved take as long as the hook?"
        )
    if _called(answer, (0.0, 2_500_000, 1_250_000)) != math.inf:
        raise NotYet("a hook that costs no time pays on every link: give math.inf.")
    if _called(answer, (0.01, 2_500_000, 2_500_000)) != 0:
        raise NotYet("a hook that saves no bytes pays on no link: give 0.")
    return "1 Gbit/s for 10 ms and 1.25 MB saved; the more a hook costs, the slower the link must be."


_RATES = {
    lambda cost, whole, sent: (whole - sent) / cost: "that is in bytes per second. A link's rate is in bit/s.",
    lambda cost, whole, sent: 8e-6 * (whole - sent) / cost: "that is in Mbit/s. The rate is in bit/s.",
    lambda cost, whole, sent: 8e-9 * (whole - sent) / cost: "that is in Gbit/s. The rate is in bit/s.",
    lambda cost, whole, sent: cost / (whole - sent): "that is β, the seconds per byte. The rate is bit/s: 8 / β.",
    lambda cost, whole, sent: cost / (8 * (whole - sent)): "that is seconds per bit. A rate is bits per second.",
    lambda cost, whole, sent: 8 * whole / cost: "it counts the whole gradient. A hook saves what it does not send.",
    lambda cost, whole, sent: 8 * sent / cost: "it counts what is sent. A hook saves what it does not send.",
    lambda cost, whole, sent: 8 * (sent - whole) / cost: "a rate below 0: what is saved is the whole less the sent.",
    lambda cost, whole, sent: 8 * (whole + sent) / cost: "what is saved is the whole less the sent, not their sum.",
}  # fmt: skip


def _called(function, case):
    """What the function gives, a float; a hint where it gives none."""
    try:
        value = function(*case)
    except ZeroDivisionError:
        raise NotYet(f"break_even{case} divides by 0. What does a hook need that costs no time?") from None
    except Exception as error:
        raise NotYet(f"your function, called as break_even{case}, raises {type(error).__name__}: {error}.") from None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise NotYet(f"break_even{case} gives {kind_of(value)}. Let it return the rate, in bit/s.")
    return float(value)


MEAN = [35000.5, 2.0, 40000.0]  # of 07.4


@exercise("07.4")
def _half(run):
    """The answer is the run of your cell on 2 ranks: `lab.check("07.4", answer)`."""
    _well(run, _half.__doc__)
    of_ranks(run, 2)
    steps = _lists(run, "gradient")
    if len(steps[0]) != 2:
        raise NotYet(f"{len(steps[0])} steps, and there are 2. Leave the loop.")
    tables = _collectives(run, 1)  # in step 0 DDP was made, too
    dtypes = {dtype for own in tables for dtype in own["dtype"]}
    for step in range(2):
        _one_half([own[step] for own in steps], "bfloat16" in dtypes)
    sent = max(int(own["bytes"].sum()) for own in tables)
    if not sent:
        raise NotYet("no rank has asked the other for its gradient in step 1.")
    if sent > 2 * len(MEAN):
        raise NotYet(
            f"the mean is right, but each rank sends {sent} bytes, and {2 * len(MEAN)} do: two for each number."
        )
    _own_hook(run, ["fp16_compress_hook", "bf16_compress_hook", "fp16_compress_wrapper"])
    worst = max(abs(number / mean - 1) for number, mean in zip(steps[0][1], MEAN, strict=True))
    return f"the mean to {worst:.0e}, on both ranks, with {sent} bytes."


def _one_half(found, brain):
    """A hint unless these are, on each rank, the mean to a thousandth. `brain`: whether bfloat16 was sent."""
    if any(len(own) != len(MEAN) for own in found):
        raise NotYet(f"a gradient has {len(found[0])} numbers, and there are {len(MEAN)}. Leave the worker.log(...).")
    if (at := first(not all(map(math.isfinite, numbers)) for numbers in zip(*found, strict=True))) is not None:
        if at:
            raise NotYet(
                "70000 and 1 are fine, but the sum of 30000 and 50000 does not fit into float16. Divide before it."
            )
        raise NotYet("70000 does not fit into float16, which ends at 65504. Its half does.")
    if found[0] != found[1]:
        one, other = next(pair for pair in zip(*found, strict=True) if pair[0] != pair[1])
        raise NotYet(
            f"the ranks have different gradients, {one:g} and {other:g}: each has to have the same sum, waited for, "
            "and to treat it alike."
        )
    ratios = [number / mean for number, mean in zip(found[0], MEAN, strict=True)]
    if all(abs(ratio - 2) < 0.01 for ratio in ratios):
        raise NotYet("the gradient is the sum. With a hook DDP does not divide.")
    if all(abs(ratio - 0.5) < 0.01 for ratio in ratios):
        raise NotYet("the gradient is half of the mean. It was divided twice.")
    worst = max(abs(ratio - 1) for ratio in ratios)
    if brain and 1e-3 < worst < 2**-7:
        raise NotYet(f"the mean is off by {worst:.1%}, as bfloat16's eight digits have it. Stay with float16.")
    if 1e-3 < worst < 0.1:
        raise NotYet(
            f"the mean is off by {worst:.1%}. float16 has its eleven digits above 6e-5 only: are numbers made so small?"
        )
    if worst > 1e-3:
        raise NotYet(f"the gradient is {', '.join(f'{n:g}' for n in found[0])}; the mean is 35000.5, 2, 40000.")
