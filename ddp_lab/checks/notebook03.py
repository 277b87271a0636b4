"""Checks of notebook 03, Setting up DDP."""

import ast
import math
import re
from collections import Counter

from ddp_lab.checks.answers import (
    BRING,
    calls_in,
    ended_well,
    first,
    is_run,
    kind_of,
    logged,
    named,
    of_ranks,
    script_of,
    series,
    spread,
)
from ddp_lab.checks.verdict import NotYet, exercise

SAME = 1e-9  # what the scripts compute in float64 rounds far below, and every mistake moves more
RATE = 0.25  # of 03.1
LAYERS = {"1.weight": (64, 64), "1.bias": (64,), "3.weight": (10, 64), "3.bias": (10,)}  # of models.mlp(), for 03.3


@exercise("03.1")
def _average_by_hand(run):
    """The answer is the run of your cell on 3 ranks: `lab.check("03.1", answer)`."""
    spots = getattr(getattr(run, "error", None), "where", None) or []
    if [spot["rank"] for spot in spots if spot.get("collective") == "broadcast"] == [0]:
        raise NotYet(
            "the run hung: rank 0 alone waits in a broadcast. broadcast is called by all ranks: src says who sends."
        )
    ended_well(run, _average_by_hand.__doc__)
    of_ranks(run, 3)
    tree = script_of(run)
    calls = calls_in(tree) if tree else []
    names = [name for name, _, _ in calls]
    if "DistributedDataParallel" in names:
        raise NotYet("DistributedDataParallel does it, but here it is to be done by hand: two calls of dist.")
    drawn = logged(run, "drawn")
    if not all(isinstance(value, (int, float)) for value in drawn):
        raise NotYet("a rank did not log what it has drawn. Leave worker.log(drawn=...) where it was.")
    if len(set(drawn)) < 3:
        raise NotYet("two ranks have drawn the same weight. Leave torch.manual_seed(rank), and send rank 0's weight.")
    weights, gradients = series(run, "weight", 8), series(run, "gradient", 8)
    twin, expected = [drawn[0]], []
    for _ in range(8):
        expected.append(2 * (twin[-1] - 2))  # the data of the three ranks ask for 1, 2 and 3
        twin.append(twin[-1] - RATE * expected[-1])
    right = all(_near(own, twin[1:]) for own in weights)
    if max(spread(gradients)) > SAME:
        if max(spread(weights)) <= SAME:
            _weights_made_equal(calls, drawn, right, weights[0])
        _own_gradients(calls, drawn, weights, gradients)
    if max(spread(weights)) > SAME:
        if _near(spread(weights), [spread(weights)[0]] * 8):
            raise NotYet(
                "the gradients are equal, the weights are not: equal steps keep the distance with which the ranks "
                "began. Rank 0's weight is to be sent to all before the loop."
            )
        raise NotYet(
            "the gradients are equal, the weights are not, and their distance changes: step() uses weight.grad. "
            "Is that what was averaged, and what is logged?"
        )
    if not right or not _near(gradients[0], expected):
        _not_the_mean(drawn[0], weights[0], gradients[0])
    if tree and not any(name and BRING.match(name) for name in names):
        raise NotYet("the numbers are right, but no rank asked the others for theirs: no all_reduce in the script.")
    return f"in each of 8 steps 3 ranks have the gradient and the weight of one process; the last is {twin[-1]:.4f}."


def _near(values, expected):
    return all(abs(value - other) <= SAME for value, other in zip(values, expected, strict=True))


def _weights_made_equal(calls, drawn, right, weights):
    """The hint where the ranks' weights are equal, and the gradients are not."""
    lines = {name: call.lineno for name, call, _ in calls}
    if right and 0 < lines.get("all_reduce", 0) < lines.get("step", 0):
        raise NotYet("the weights are right; the gradient was logged before it was averaged. Average above the log.")
    if right:
        raise NotYet("the weights are right, but it is they that were averaged. DDP averages gradients, before step().")
    if _near(weights, [1 + (drawn[0] - 1) * 0.5**step for step in range(1, 9)]):
        raise NotYet("all have rank 0's weight in every step, and it has learned from rank 0's data alone, towards 1.")
    raise NotYet("the weights are equal, the gradients are not. Average the gradients, and before step().")


def _own_gradients(calls, drawn, weights, gradients):
    """The hint where each rank has a weight and a gradient of its own."""
    if step := first(gap > SAME for gap in spread(gradients)):
        raise NotYet(f"the gradients are equal at first, and apart from step {step} on. Average in every step.")
    begun = [weight[0] + RATE * gradient[0] for weight, gradient in zip(weights, gradients, strict=True)]
    total = sum(2 * (weight - (rank + 1)) for rank, weight in enumerate(begun))
    if _near(gradients[0][:1], [total]) or _near(gradients[0][:1], [total / 3]):
        raise NotYet("rank 0 alone has the gradients of all. reduce gives the sum to one rank, all_reduce to all.")
    reduced = next((call for name, call, _ in calls if name == "all_reduce"), None)
    given = ast.unparse(reduced.args[0]) if reduced and reduced.args else "weight.grad"
    if not given.endswith(".grad"):
        raise NotYet(
            f"all_reduce was given `{given}`, and the gradients are each rank's own, as before: it changes what it is "
            "given, in place, and step() uses weight.grad."
        )
    if reduced and reduced.lineno > max((call.lineno for name, call, _ in calls if name == "step"), default=0):
        raise NotYet("all_reduce comes after step(), which has used each rank's own gradient. Average before it.")
    if _near(begun, drawn):
        raise NotYet(
            "each rank trains alone: other weights from the start, other gradients in every step. "
            "Send rank 0's weight to all, then average the gradients in each step."
        )
    raise NotYet(
        "all begin with one weight and drift apart from step 0 on: each rank still has a gradient of its own. "
        "Add them up over the ranks, in place, after backward()."
    )


def _not_the_mean(drawn, weights, gradients):
    """The hint where the ranks agree, but not on what one process would have."""
    rate = (weights[0] - weights[1]) / gradients[1] if gradients[1] else RATE
    begun = weights[0] + rate * gradients[0]
    if not _near(weights[1:], [w - rate * g for w, g in zip(weights, gradients[1:], strict=False)]):
        raise NotYet("the weight moves, but not by one rate times the gradient that is logged. Leave SGD as it was.")
    if abs(begun - drawn) > SAME:
        raise NotYet(f"the ranks agree, but began with {begun:.3f}, and rank 0 had drawn {drawn:.3f}. Send rank 0's.")
    times = gradients[0] / (2 * (begun - 2))
    if math.isclose(times, 3, rel_tol=1e-6):
        raise NotYet("the gradient is 3 times what one process has: it is the sum. DDP takes the mean.")
    if abs(rate - RATE) > SAME:
        raise NotYet(f"the ranks begin right, but the rate is {rate:.3g}. Leave it at {RATE}.")
    if math.isclose(times, 1, rel_tol=1e-6):
        raise NotYet("step 0 is right, and later steps are not. Do the same in every step, and once.")
    raise NotYet(f"the gradient is {times:.3g} times what one process has. Divide the sum by the number of ranks.")


@exercise("03.2")
def _to_ddp(answer):
    """The answer is both runs in a dict: `{"target": target, "run": answer}`."""
    if is_run(answer):
        raise NotYet('the answer is a run alone. Give both: {"target": target, "run": answer}.')
    if not isinstance(answer, dict):
        raise NotYet(f"the answer is {kind_of(answer)}. {_to_ddp.__doc__}")
    target, run = answer.get("target"), answer.get("run")
    if not is_run(target) or len(target.ranks) != 1 or not _reads(target.ranks[0]):
        raise NotYet("`target` is to be the run of one_process.py, the cell above your `answer`.")
    ended_well(run, _to_ddp.__doc__)
    of_ranks(run, 2)
    (aim,), reads = [_reads(rank) for rank in target.ranks], [_reads(rank) for rank in run.ranks]
    tree = script_of(run)
    names = {name for name, _, _ in calls_in(tree)} if tree else None
    _shared_out(aim, reads, names)
    steps = len(aim)
    weights, (wanted,) = series(run, "weights", steps), series(target, "weights", steps)
    _one_model(spread(weights), names, tree)
    worst = _as_the_target(weights[0], wanted)
    if names is not None and "DistributedDataParallel" not in names:
        if any(name and BRING.match(name) for name in names):
            _by_hand()
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
    orders = [sum(own, []) for own in reads]
    counts = Counter(sum(orders, []))
    if again := sorted(sample for sample, count in counts.items() if count > 1):
        raise NotYet(f"{len(again)} samples are read more than once, such as sample {again[0]}: the shares overlap.")
    for step, samples in enumerate(aim):
        read = sorted(sample for own in reads if step < len(own) for sample in own[step])
        if read != sorted(samples):
            why = ""
            if any(order != sorted(order) for order in orders):
                why = " They are shuffled, as DistributedSampler does unless it is told not to."
            elif all(own in (everything[: len(own)], everything[-len(own) :]) for own in orders):
                why = (
                    " In each step the ranks together must read what the twin reads in that step: "
                    "contiguous shares of the data set do not give that."
                )
            raise NotYet(f"in step {step} the ranks read {read}, the target {sorted(samples)}.{why}")


def _by_hand():
    raise NotYet("the weights are right, and averaged by hand. Here the wrap is to do it.")


def _one_model(apart, names, tree):
    """A hint unless the ranks have the same weights in every step."""
    step = first(gap > SAME for gap in apart)
    if step is None:
        return
    said = f"the ranks' weights are apart after step {step}"
    if names is None or "DistributedDataParallel" in names:
        if tree and (line := _cast_after_the_wrap(tree)):
            raise NotYet(f"{said}: in line {line} the model is cast or moved after the wrap, which does not follow it.")
        raise NotYet(f"{said}. Is the model wrapped, and does the loss come from the wrapper, not from what is inside?")
    if any(name and BRING.match(name) for name in names):
        raise NotYet(f"{said}, and there is no wrap, though something is exchanged. The wrap sends and averages.")
    raise NotYet(f"{said}: nothing averages their gradients.")


CAST = ("double", "float", "half", "bfloat16", "to", "type")
SAME_MODEL = (*CAST, "train", "eval", "requires_grad_")  # methods of a model that return it


def _start(node):
    return node.lineno, node.col_offset


def _end(node):
    return node.end_lineno, node.end_col_offset


def _wraps(tree):
    """The calls of DistributedDataParallel."""
    return [call for name, call, _ in calls_in(tree) if name == "DistributedDataParallel"]


def _model_of(node):
    """`model`, of `model.train().double()`."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SAME_MODEL:
        node = node.func.value
    return node


def _bindings(tree):
    """[(name, what it is bound to)], in the order of the script; a name may have dots."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += [(ast.unparse(target), node.value) for target in targets]
    return sorted(found, key=lambda bound: _start(bound[1]))


def _wrapped(wrap):
    """What this wrap was given, None if that cannot be told."""
    given = wrap.args[:1] or [keyword.value for keyword in wrap.keywords if keyword.arg == "module"]
    return _model_of(given[0]) if given else None


def _cast_after_the_wrap(tree):
    """The line of a cast or move of a wrapped model; None without one, or if a model is called past its wrapper."""
    wraps, calls, bindings = _wraps(tree), calls_in(tree), _bindings(tree)
    for wrap in wraps:
        outer = {name for name, value in bindings if _model_of(value) is wrap}
        given = _wrapped(wrap)
        inner = {ast.unparse(given)} if isinstance(given, (ast.Name, ast.Attribute)) else set()
        past = inner - outer | {f"{name}.module" for name in outer}
        later = [(name, call) for name, call, _ in calls if _end(call) > _end(wrap)]
        if any(_start(call) > _end(wrap) and ast.unparse(call.func) in past for _, call in later):
            return None
        for name, call in later:
            if name in CAST and isinstance(call.func, ast.Attribute):
                model = _model_of(call.func.value)
                if model is wrap or (_start(model) > _end(wrap) and ast.unparse(model) in outer | past):
                    return call.end_lineno
    return None


def _as_the_target(weights, wanted):
    """How far the weights, which all ranks have, are from the target's at most; a hint unless they are the same."""
    gaps = [abs(own - other) for own, other in zip(weights, wanted, strict=True)]
    step, worst = first(not gap <= SAME for gap in gaps), max(gaps)
    if step is None:
        return worst
    if worst < 1e-3:
        raise NotYet(f"the ranks are {worst:.0e} from the target: close, not equal. Did .double() stay everywhere?")
    if step > 0:
        raise NotYet(
            f"the ranks have the same weights as the target up to step {step - 1}, and not in step {step}. "
            "What does a step leave to the next that the target's does not?"
        )
    raise NotYet(
        "the ranks agree, and differ from the target from step 0 on. A sum where the target has a mean (of the loss, "
        "or over the ranks), another rate, another seed on rank 0?"
    )


@exercise("03.3")
def _save_once(run):
    """The answer is the run of your cell: `lab.check("03.3", answer)`."""
    ended_well(run, _save_once.__doc__)
    of_ranks(run, 2, or_more=True)
    weights = logged(run, "weights")
    if ... in weights:
        raise NotYet("a rank did not log its weights. Leave worker.log(weights=...) where it was, after the loop.")
    if any(own != weights[0] for own in weights):
        raise NotYet("the ranks' models differ by now. Leave the training as it was.")
    writers = [rank.rank for rank in run.ranks if len(rank.saved)]
    if not writers:
        raise NotYet(
            'no rank has saved anything by worker.save("checkpoint", ...), which one rank is to call. '
            "A file of your own is not seen here."
        )
    if len(writers) > 1:
        raise NotYet(f"{named(writers)} have saved, into one file they would write at the same time. One is enough.")
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
    for name, inner in state.items() if isinstance(state, dict) else ():
        if isinstance(inner, dict) and any(key.endswith(tuple(LAYERS)) for key in inner):
            raise NotYet(f"the state dict lies in another dict, as {name}. A model loads it only by itself.")
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
        if state[name].dtype != "float32":
            raise NotYet(
                f"{name} is {state[name].dtype}, in a bare mlp() float32. load_state_dict() converts it without a word."
            )
    _are_trained(state, weights)


def _are_trained(state, weights):
    """A hint unless the tensors are those of the model at the end, of which the ranks have logged `weights`."""
    for name, trained in zip(LAYERS, weights, strict=True):
        if gap := float(abs(state[name] - trained).max()):
            raise NotYet(
                f"{name} is not the trained one: it differs by up to {gap:.2g} from what the model has at the end. "
                "When was it saved, and what was done to it?"
            )


@exercise("03.4")
def _silent_faults(run):
    """The answer is the run of your cell: `lab.check("03.4", answer)`."""
    if "Expected to have finished reduction" in str(getattr(run, "error", "")):
        raise NotYet(
            "the run failed: DDP has had no gradient for a parameter on its list. Which was frozen, and when? "
            "The wrap makes the list."
        )
    ended_well(run, _silent_faults.__doc__)
    of_ranks(run, 2, or_more=True)
    body, head, gradient, loss = (series(run, name, 6) for name in ("body", "head", "gradient", "loss"))
    apart = {"body": spread(body), "head": spread(head)}
    start = max(apart["body"][0], apart["head"][0])
    if start > SAME:
        raise NotYet(
            f"in step 0, before anything was trained, the ranks are {start:.2g} apart: "
            "only rank 0 has the saved weights. When does DDP send its weights?"
        )
    if not math.isclose(body[0][0], 2) or not math.isclose(head[0][0], 2):
        raise NotYet("the ranks agree, but do not begin with the saved weights, whose sizes add up to 2 in each layer.")
    if min(spread(loss)) <= SAME:
        raise NotYet("the ranks have the same loss in a step: each is to keep data of its own.")
    late = first(gap > SAME for gap in map(max, apart["body"], apart["head"]))
    if late is not None:
        layer = max(apart, key=lambda name: apart[name][late])
        raise NotYet(
            f"equal up to step {late - 1}, and {apart[layer][late]:.2g} apart in step {late}, in the {layer}. "
            "What was trained for the first time just before, and does the wrap know of it?"
        )
    if max(spread(gradient)) > SAME:
        raise NotYet("the weights are equal, the gradients are not: that hides the fault. Let DDP average them.")
    if body[0][3] != body[0][0]:
        raise NotYet("the body has changed before step 3. It is to stay frozen until then.")
    for name, layer, begin in (("head", head, 0), ("body", body, 3)):
        if (step := first(layer[0][step + 1] == layer[0][step] for step in range(begin, 5))) is not None:
            raise NotYet(f"step {begin + step} leaves the {name} as it was. It is to be trained from step {begin} on.")
    if tree := script_of(run):
        _wrapped_well(tree)
    return "the ranks begin with the saved weights and are 0 apart in all 6 steps, body and head."


def _wrapped_well(tree):
    """A hint if a wrapper is wrapped, or the gradients are averaged without the wrap."""
    wraps, bindings = _wraps(tree), _bindings(tree)
    for wrap in wraps:
        given = _wrapped(wrap)
        if isinstance(given, (ast.Name, ast.Attribute)):
            before = [value for name, value in bindings if name == ast.unparse(given) and _end(value) < _start(wrap)]
            given = _model_of(before[-1]) if before else given
        if any(given is other for other in wraps):
            raise NotYet(
                f"the numbers are right, but line {wrap.lineno} puts a wrapper round a wrapper. "
                "Which module did the first wrapper get?"
            )
    grads = {name for name, value in bindings if re.search(r"\.grad(\.data|\.detach\(\))?$", ast.unparse(value))}
    for name, call, _ in calls_in(tree):
        if not name or not (BRING.match(name) or name == "broadcast") or ("gather" in name and len(wraps) > 1):
            continue  # who wraps again and gathers only compares
        given = [ast.unparse(value) for value in (*call.args, *(keyword.value for keyword in call.keywords))]
        if any(value in grads or re.search(r"\.grad\b", value) for value in given):
            _by_hand()
