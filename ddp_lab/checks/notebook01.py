"""Checks of notebook 01, DataParallel and its pitfalls."""

import ast
from numbers import Real

from ddp_lab.checks.answers import calls_in, ended_well, kind_of, of_ranks, script_of
from ddp_lab.checks.verdict import NotYet, exercise

# Of 01.1: bytes of the weights, of a sample's inputs and outputs, samples, devices. The first three are asked for.
CASES = [
    (19_240, 256, 40, 96, 4),
    (19_240, 256, 40, 10, 4),
    (19_240, 256, 40, 9, 4),
    (1_000, 12, 4_000, 64, 8),
    (1_000, 12, 4_000, 3, 8),
    (1_000, 12, 4_000, 5, 2),
]
CHUNKS = {10: "shares of 3, 3, 3 and 1", 9: "three shares of 3: the fourth device has none, and no replica"}


@exercise("01.1")
def _ledger_by_hand(answer):
    """The answer is your function: `lab.check("01.1", device_0)`."""
    if not callable(answer):
        raise NotYet(f"the answer is {kind_of(answer)}, not a function. {_ledger_by_hand.__doc__}")
    for number, case in enumerate(CASES):
        try:
            found = answer(*case)
        except Exception as error:
            raise NotYet(
                f"your function raised {type(error).__name__}: {error}, for {case[3]} samples on {case[4]} devices."
            ) from None
        _compare(case, _phases(found), number)
    return "in each phase the bytes of device 0, with even shares, uneven ones, and devices that have none."


def ledger_of_device_0(weights, inputs, outputs, samples, devices):
    """{phase: (bytes in, bytes out)} of device 0 in a step of DataParallel, the batch on device 0."""
    share = -(-samples // devices)
    replicas = -(-samples // share) - 1
    away = samples - share
    return {
        "scatter": (0, away * inputs),
        "replicate": (0, replicas * weights),
        "gather": (away * outputs, away * outputs),
        "reduce": (replicas * weights, 0),
    }


def _phases(found):
    """What the function returned, as {phase: (in, out)}, else a hint."""
    names = ("scatter", "replicate", "gather", "reduce")
    if not isinstance(found, dict):
        raise NotYet(f"the function returns {kind_of(found)}. It is to return a dict of the four phases.")
    if missing := [name for name in names if name not in found]:
        raise NotYet(f"the phase {missing[0]} is missing in what the function returns.")
    for name in names:
        pair = found[name]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(_number(value) for value in pair):
            raise NotYet(f"{name} is {str(pair)[:40]}. It is to be two numbers: (bytes in, bytes out).")
    return {name: tuple(found[name]) for name in names}


def _number(value):
    return isinstance(value, Real) and not isinstance(value, bool)


def _compare(case, found, number):
    """A hint unless these are the bytes of this case."""
    weights, inputs, outputs, samples, devices = case
    right = ledger_of_device_0(*case)
    where = f"{samples} samples on {devices} devices"
    if not any(value for pair in found.values() for value in pair):
        raise NotYet("all is still 0. Begin with scatter: how many samples leave device 0?")
    for phase, pair in right.items():
        own = found[phase]
        if own == pair:
            continue
        if own == pair[::-1]:
            raise NotYet(f"{phase}: in and out are exchanged. (bytes in, bytes out), as device 0 sees them.")
        if phase == "gather" and own in ((pair[0], 0), (0, pair[1])):
            raise NotYet("gather: one way is missing. The outputs come in, and in backward their gradients go out.")
        if phase == "scatter" and own == (pair[1], pair[1]):
            raise NotYet("scatter: nothing comes back. These samples need no gradient.")
        if phase in ("replicate", "reduce") and own == (max(pair), max(pair)):
            raise NotYet(f"{phase} is one way. The way back of replicate is reduce.")
        if max(own) == {"scatter": inputs, "gather": outputs}.get(phase, -1) * samples:
            raise NotYet(f"{phase}: that is the whole batch. Device 0's own share stays where it is.")
        if phase in ("replicate", "reduce") and max(own) == devices * weights:
            raise NotYet(f"{phase}: that is one too many. Device 0's replica uses the module's own memory.")
        if phase in ("replicate", "reduce") and max(own) == weights:
            raise NotYet(f"{phase}: that is one device's. How many devices have a replica, besides device 0?")
        if phase == "scatter" and min(own) == 0 < max(own) and own[0]:
            raise NotYet("scatter: the batch lies on device 0, which sends the others their shares.")
        share = CHUNKS.get(samples, f"{samples} rows in shares of {-(-samples // devices)}")
        if number >= 3:
            raise NotYet(f"{phase} is right for the target's three, and not for {where} of other sizes.")
        if number:
            raise NotYet(f"{phase} is right for even shares, and not for {where}: {share}.")
        raise NotYet(f"{phase} is {own}, not yet the bytes of {where}. How much of it lies on the other devices?")


@exercise("01.2")
def _gather_losses(run):
    """The answer is the run of your cell: `lab.check("01.2", answer)`."""
    text = str(getattr(run, "error", "") or "")
    if "grad can be implicitly created" in text:
        raise NotYet("the losses come back as a vector, one of each device: make one number of them before backward().")
    if "to match target batch_size" in text:
        raise NotYet(
            "each device has 8 samples, and all 32 labels: only arguments of the call are split. "
            "Call the model with the labels."
        )
    if "forward()" in text and ("missing 1 required" in text or "positional argument" in text):
        raise NotYet("forward and its call do not agree: both need the labels. Change both places.")
    if "1D target must have size 1" in text:
        raise NotYet("what model(...) returns are losses already: no cross_entropy outside.")
    if "'NoneType' object has no attribute 'norm'" in text:
        raise NotYet("there is no gradient. Is loss.backward() missing?")
    ended_well(run, _gather_losses.__doc__)
    of_ranks(run, 1)
    tree = script_of(run)
    calls = calls_in(tree) if tree else []
    found = next((record for record in reversed(run.ranks[0].records) if "gathered" in record), None)
    names = ("devices", "gathered", "reduced", "ratio", "difference")
    if not found or not all(_number(found.get(name)) for name in names):
        raise NotYet("the script did not log gathered, reduced, ratio and difference. Leave its worker.log as it was.")
    if any(name == "log" and any(isinstance(word.value, ast.Constant) for word in call.keywords)
           for name, call, _ in calls):  # fmt: skip
        raise NotYet("a number is written down in worker.log, where it is to be counted. Leave that call as it was.")
    gathered, scores = found["gathered"], 24 * 1000 * 8
    if found["devices"] != 4:
        raise NotYet(f"the model is on {found['devices']} devices. Leave it on 4.")
    if gathered >= scores:
        both = " beside the losses" if gathered > scores else ""
        raise NotYet(
            f"device 0 still receives {gathered:,.0f} bytes, the scores{both}. "
            "forward is to return the loss of its share, and nothing else."
        )
    if gathered == 0:
        raise NotYet("nothing is gathered: was the module called, and not the model?")
    if gathered == 24 * 8:
        raise NotYet("192 bytes: a loss for each of the 24 samples. Let each device return one, their mean.")
    if gathered != 24:
        raise NotYet(f"device 0 receives {gathered:,.0f} bytes. Three losses of 8 bytes are 24.")
    if abs(found["ratio"] - 4) < 1e-6:
        raise NotYet("24 bytes, but the gradients are 4 times too large: the losses were added. Take their mean.")
    if abs(found["ratio"] - 8) < 1e-6 or abs(found["ratio"] - 32) < 1e-6:
        raise NotYet("24 bytes, but the losses are sums over samples. Each is to be the mean of its device's share.")
    if not found["difference"] < 1e-12:
        raise NotYet(
            f"24 bytes, but the gradients are {found['difference']:.1g} from those of the whole batch. "
            "Do all four losses count, each once and alike?"
        )
    if found["reduced"] != 3 * 9000 * 8:
        raise NotYet(
            "the gradients are right, but have not come from the other devices: "
            "begin backward() at what model(...) has returned."
        )
    return "device 0 receives 24 bytes instead of 192,000, and the gradients are those of the whole batch."


@exercise("01.3")
def _state_survives(run):
    """The answer is the run of your cell: `lab.check("01.3", answer)`."""
    if "'int' object is not iterable" in str(getattr(run, "error", "") or ""):
        raise NotYet("what forward returns must be tensors: gather joins them by rows.")
    ended_well(run, _state_survives.__doc__)
    of_ranks(run, 1)
    records = run.ranks[0].records
    shares = [record["share"] for record in records if "share" in record]
    kept = {record["step"]: record for record in records if {"step", "count", "total"} <= set(record)}
    if set(kept) != set(range(4)) or not all(_number(record["count"]) for record in kept.values()):
        raise NotYet("count, as one number, and total are to be logged in each of 4 steps. Leave the loop's last line.")
    if set(shares) == {7}:
        raise NotYet("forward got all 7 samples at once: the module was called itself, or is on one device, not 3.")
    if sorted(shares) != sorted([3, 3, 1] * 4):
        raise NotYet("forward is to get shares of 3, 3 and 1 in each step. Leave its worker.log, and 3 devices.")
    counts = [kept[step]["count"] for step in range(4)]
    totals = [kept[step]["total"] for step in range(4)]
    if not any(counts) and not any(map(_any, totals)):
        raise NotYet("nothing is kept: count is 0 after each step. What a replica changes goes with it: return it.")
    if counts == [3, 6, 9, 12]:
        raise NotYet(
            "count is 3 more in each step: device 0's share alone, or the number of devices. Add up all shares."
        )
    if counts == [7] * 4:
        raise NotYet("count is 7 after each step: it is set anew, where it is to be added to.")
    if counts != [7, 14, 21, 28]:
        twice = ", device 0's share twice" if counts[0] == 10 else ""
        raise NotYet(f"count is {', '.join(f'{count:g}' for count in counts)}{twice}; it is to be 7, 14, 21, 28.")
    expected, right = [0, 0], []
    for step in range(4):  # the batch is 0 to 13 in two columns, and `step` more in each
        expected = [expected[0] + 42 + 7 * step, expected[1] + 49 + 7 * step]
        right.append(expected)
    if totals != right:
        if not any(map(_any, totals)):
            raise NotYet("count is right, total is still lost. It is to be returned and added, too.")
        last = totals[-1]
        if isinstance(last, list) and len(set(last)) == 1:
            raise NotYet("count is right; total has added up both columns. Let each device return a row: keepdim=True.")
        raise NotYet(
            f"count is right; total ends as {totals[-1]}, and the sums of the two columns are {right[-1]}."
        )
    return "count and total are those of all 28 samples, after 4 steps on 3 devices."


def _any(value):
    """Whether a number, or one of a list, is not 0."""
    return any(value) if isinstance(value, list) else bool(value)
