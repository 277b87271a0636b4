"""Checks of notebook 08, first half: its own cells are run, as they stand and with mistakes in them."""

import numpy as np
import pytest
from answering import Cells, hint, made_up_run

import ddp_lab as lab
from ddp_lab.launch.torchrun import launch

CELLS = Cells("08_overlap_and_scaling.ipynb")


def run_cell(name, *edits, nproc=2, trace=True):
    """As Cells.run(), but traced."""
    script, _ = CELLS.script(name)
    for old, new in edits:
        assert old in script, old
        script = script.replace(old, new)
    how = {"check": False, "trace": trace, "cell": script, "timeout": 120, "stall": 60, "show": "none"}
    return launch([], name, (), nproc, how.pop("timeout"), how.pop("stall"), how.pop("show"), None, None, None, **how)


def test_the_solution_is_its_starter_with_little_changed():
    starter, solution = (set(CELLS.script(f"by_hand{which}.py")[0].splitlines()) for which in ("", "_solution"))
    assert len(starter - solution) <= 3, starter - solution


SEND = "works.append(dist.all_reduce(parameter.grad, async_op=True))"
WAIT = "    while works:\n        works.pop().wait()\n"
DIVIDE = "        parameter.grad /= dist.get_world_size()\n"
LOG = "    worker.log(step=step, gradients=[p.grad.item() for p in net.parameters()])\n"
ZERO = "    net.zero_grad()\n"
THREAD = "works.append(threading.Thread(target=dist.all_reduce, args=(parameter.grad,)))\n    works[-1].start()"
LATE = ("    net(x)", "    __import__('time').sleep(0.15 * dist.get_rank())\n    net(x)")  # rank 1, after the barrier
HOOKS = "for parameter in net.parameters():\n    parameter.register_post_accumulate_grad_hook(send)\n"
WRONG_SENDS = {  # mistake: (edits of the solution, the hint)
    "not divided": ([(DIVIDE, "        pass\n")], "in step 0 the gradients are 3, the sum. Divide"),
    "divided twice": ([(DIVIDE, 2 * DIVIDE)], "in step 0 the gradients are 0.75: divided twice"),
    "waits in the hook": ([(SEND, "dist.all_reduce(parameter.grad)")], "but backward stands still until each has come"),
    "waits in the hook for the work": (
        [(SEND, "dist.all_reduce(parameter.grad, async_op=True).wait()")],
        "but backward stands still until each has come",
    ),
    "all sent at the end": (
        [
            ("    parameter.register_post_accumulate_grad_hook(send)\n", "    pass\n"),
            (WAIT, "    for parameter in net.parameters():\n        send(parameter)\n" + WAIT),
        ],
        "sends 0 of its gradients while backward goes on, and 3 of 4 can be",
    ),
    "all sent at the end, and a rank is late": (
        [
            LATE,
            ("    parameter.register_post_accumulate_grad_hook(send)\n", "    pass\n"),
            (WAIT, "    for parameter in net.parameters():\n        send(parameter)\n" + WAIT),
        ],
        "sends 0 of its gradients while backward goes on, and 3 of 4 can be",
    ),
    "one layer alone is sent early": (
        [
            ("    parameter.register_post_accumulate_grad_hook(send)\n", "    pass\n"),
            ("works = []\n", "works = []\nlast = [*net.parameters()][-1]\n"),
            ("for step in range(3):\n", "last.register_post_accumulate_grad_hook(send)\nfor step in range(3):\n"),
            (WAIT, "    for parameter in [*net.parameters()][:-1]:\n        send(parameter)\n" + WAIT),
        ],
        "sends 1 of its gradients while backward goes on",
    ),
    "nothing sent": ([(SEND, "pass")], "in step 0 the ranks have 0.5, 0.5, 0.5, 0.5 and 1, 1, 1, 1"),
    "typed": (
        [(SEND, "parameter.grad.fill_(3.0 * 10**step)")],
        "in step 0 the trace of rank 0 has no all-reduce",
    ),
    "DDP": (
        [
            ("    parameter.register_post_accumulate_grad_hook(send)\n", "    pass\n"),
            ("works = []\n", "works = []\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"),
            ("for step in range(3):\n", "model = DDP(net, bucket_cap_mb=0)\nfor step in range(3):\n"),
            ("    net(x)", "    model(x)"),
            (DIVIDE, "        pass\n"),
        ],
        "DDP does this for you",
    ),
    "sent again at the end": (
        [(DIVIDE, "        dist.all_reduce(parameter.grad)\n" + DIVIDE)],
        "in step 0 there are 8 all-reduces, and 4 gradients: each is sent once. Is the one after backward still there?",
    ),
    "the starter's loop left in besides hooks": (
        [(WAIT, ""), (DIVIDE, "        dist.all_reduce(parameter.grad)\n" + DIVIDE)],
        "in step 0 there are 8 all-reduces, and 4 gradients: each is sent once",
    ),
    "no wait": ([(WAIT, "")], "begins 4 all-reduces, and waits for 0"),
    "waits for the last": (
        [(WAIT, "    works[-1].wait()\n    works.clear()\n")],
        "in step 0 rank 0 begins 4 all-reduces, and waits for 1",
    ),
    "divided while sent": (
        [(SEND, f"{SEND}\n    parameter.grad /= 2"), ("    for parameter in net.parameters():\n" + DIVIDE, "")],
        "in step 0 rank 0 divides gradients that are being sent",
    ),
    "divided while sent, by another name": (
        [
            (SEND, f"own = parameter.grad\n    {SEND}\n    own.mul_(0.5)"),
            ("    for parameter in net.parameters():\n" + DIVIDE, ""),
        ],
        "in step 0 rank 0 divides gradients that are being sent",
    ),
    "divided, then waited for": (
        [
            (WAIT, ""),
            ("    worker.log", WAIT + "    worker.log"),
        ],
        "in step 0 rank 0 divides gradients that are being sent",
    ),
    "threads": (
        [
            (SEND, f"import threading\n\n    {THREAD}"),
            (WAIT, WAIT.replace("wait", "join")),
        ],
        "what threads of your own send is not in the trace",
    ),
    "hooks in each step": (
        [(HOOKS, ""), (ZERO, ZERO + "".join(f"    {line}\n" for line in HOOKS.splitlines()))],
        "in step 1 there are 8 all-reduces, and 4 gradients",
    ),
    "a hook of the gradient": (
        [
            (
                f"def send(parameter):\n    {SEND}",
                f"def send(parameter):\n    {SEND}".replace("parameter.grad,", "parameter,"),
            ),
            ("register_post_accumulate_grad_hook", "register_hook"),
        ],
        "register_hook(...) calls you before the gradient is in parameter.grad",
    ),
    "a hook too early": (
        [("register_post_accumulate_grad_hook(send)", "register_hook(lambda _, own=parameter: send(own))")],
        "register_hook(...) calls you before the gradient is in parameter.grad",
    ),
    "the last hook sends all": (
        [
            ("    parameter.register_post_accumulate_grad_hook(send)\n", "    pass\n"),
            (
                "for step in range(3):\n",
                "def send_all(_):\n    for own in net.parameters():\n        send(own)\n\n\n"
                "net[0].weight.register_post_accumulate_grad_hook(send_all)\n"
                "for step in range(3):\n",
            ),
        ],
        "sends 0 of its gradients while backward goes on",
    ),
    "fewer steps": ([("range(3)", "range(2)")], "has logged gradients in 2 steps of 3"),
    "nothing logged": ([(LOG, "")], "has logged gradients in 0 steps of 3"),
    "another model": ([("range(4)", "range(5)")], "there are no 4 gradients"),
    "fails": ([(SEND, "works.append(dist.all_reduce(parameter))")], "the run failed"),
}


@pytest.mark.parametrize("mistake", WRONG_SENDS)
def test_each_wrong_way_to_send_has_its_own_hint(mistake):
    edits, expected = WRONG_SENDS[mistake]
    assert expected in hint("08.1", run_cell("by_hand_solution.py", *edits))


RIGHT_SENDS = {
    "as it stands": [],
    "a rank is late": [LATE],
    "a rank is late within its backward": [
        (SEND, f"__import__('time').sleep(0.1 * dist.get_rank())\n    {SEND}"),
    ],
    "the one before is waited for": [(SEND, f"if works:\n        works.pop().wait()\n    {SEND}")],
    "the one before is waited for, then divided": [
        (SEND, "works.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))\n    if works[1:]:\n"
               "        own, work = works.pop(0)\n        work.wait()\n        own.grad /= 2"),
        (WAIT, "    own, work = works.pop()\n    work.wait()\n    own.grad /= 2\n"),
        ("    for parameter in net.parameters():\n" + DIVIDE, ""),
    ],
    "collected": [
        (SEND, "works.append(dist.all_reduce(parameter.grad, async_op=True).get_future())"),
        (WAIT, "    torch.futures.collect_all(works).wait()\n    works.clear()\n"),
    ],
    "asked until it is there": [
        (WAIT, "    while works:\n        if works[0].is_completed():\n            del works[0]\n"),
    ],
    "divided before": [
        (SEND, f"parameter.grad /= dist.get_world_size()\n    {SEND}"),
        ("    for parameter in net.parameters():\n" + DIVIDE, ""),
    ],
    "a future": [
        (SEND, "works.append(dist.all_reduce(parameter.grad, async_op=True).get_future())"),
    ],
    "all at once": [
        (SEND, "works.append(dist.all_reduce(parameter.grad, async_op=True).get_future())"),
        (WAIT, "    torch.futures.wait_all(works)\n    works.clear()\n"),
    ],
    "a lambda": [
        ("post_accumulate_grad_hook(send)", f"post_accumulate_grad_hook(lambda parameter: {SEND})"),
    ],
    "each is divided when it has come": [
        (SEND, "works.append((parameter, dist.all_reduce(parameter.grad, async_op=True)))"),
        (WAIT, "    for own, work in works:\n        work.wait()\n        own.grad /= 2\n    works.clear()\n"),
        ("    for parameter in net.parameters():\n" + DIVIDE, ""),
    ],
    "a callback divides": [
        (SEND, SEND[:-1] + ".get_future().then(lambda future: future.value()[0].div_(2)))"),
        ("    for parameter in net.parameters():\n" + DIVIDE, ""),
    ],
    "the loss is divided": [
        ("net(x).sum().backward()", "(net(x).sum() / dist.get_world_size()).backward()"),
        ("    for parameter in net.parameters():\n" + DIVIDE, ""),
    ],
    "torch takes the mean": [
        (SEND, "works.append(dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, async_op=True))"),
        ("    for parameter in net.parameters():\n" + DIVIDE, ""),
    ],
    "from the first on": [(WAIT, "    while works:\n        works[0].wait()\n        del works[0]\n")],
    "all but the last": [
        (HOOKS, HOOKS.replace("net.parameters()", "[*net.parameters()][1:]")),
        (WAIT, "    send(next(net.parameters()))\n" + WAIT),
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", RIGHT_SENDS)
def test_a_right_way_to_send_is_done_in_several_forms(way):
    assert lab.check("08.1", run_cell("by_hand_solution.py", *RIGHT_SENDS[way])).done


def test_the_starter_is_told_what_is_missing():
    assert "parameter.register_post_accumulate_grad_hook(...)" in hint("08.1", run_cell("by_hand.py"))


def test_another_number_of_ranks_no_trace_and_what_is_no_run_is_said():
    assert "Write --nproc 2" in hint("08.1", run_cell("by_hand_solution.py", nproc=3))
    assert "Leave --trace in the cell's first line" in hint("08.1", run_cell("by_hand_solution.py", trace=False))
    records = [{"step": step, "gradients": [mean] * 4} for step, mean in enumerate((1.5, 15.0, 150.0))]
    assert "Leave --trace in the cell's first line" in hint("08.1", made_up_run([records] * 2))
    for answer in (None, 1.5, [1.5, 15, 150]):
        assert "The answer is the run of your cell on 2 ranks" in hint("08.1", answer)


SIZES = {"default": [4, 4], "25": [8], "0.6": [3, 3, 2], "[0.5, 1]": [2, 4, 2]}
WRONG_SIZES = {  # mistake: (what is changed, the hint)
    "nothing yet": (dict.fromkeys(SIZES, ...), "no list yet for default, 25, 0.6, [0.5, 1]"),
    "one is missing": ({"25": None}, "no list yet for 25"),
    "default as 25": ({"default": [8]}, "default: that is the first step, and bucket_cap_mb=25 in all"),
    "25 as default": ({"25": [4, 4]}, "25: given explicitly, 25 holds for the first bucket, too"),
    "closed before": ({"0.6": [2, 2, 2, 2]}, "0.6: a bucket is closed when it has reached its cap, not before"),
    "default closed before": ({"default": [3, 5]}, "default: a bucket is closed when it has reached its cap"),
    "from the end": ({"0.6": [2, 3, 3]}, "in which order are they filled?"),
    "1 MiB first": ({"0.6": [4, 3, 1]}, "the first bucket has 1 MiB only where no cap is given"),
    "first repeats": ({"[0.5, 1]": [2, 2, 2, 2]}, "the last number of the list is for all buckets that follow"),
    "list reversed": ({"[0.5, 1]": [4, 2, 2]}, "the first bucket that is sent has the first number"),
    "too many": ({"[0.5, 1]": [2, 4, 4]}, "there are only 8 layers"),
    "not eight": ({"25": [6]}, "25: in all these are 6 layers, and the model has 8"),
    "order": ({"0.6": [3, 2, 3]}, "0.6: the numbers are right, but not their order"),
    "something else": ({"0.6": [1] * 8}, "0.6: [1, 1, 1, 1, 1, 1, 1, 1] is not it"),
    "a number": ({"25": 8}, "25: 8 is no list of whole numbers"),
    "bytes": ({"25": [2105344]}, "25: in all these are 2105344 layers"),
    "text": ({"25": ["8"]}, "is no list of whole numbers"),
    "true": ({"25": [True]}, "is no list of whole numbers"),
}


@pytest.mark.parametrize("mistake", WRONG_SIZES)
def test_each_wrong_size_has_its_own_hint(mistake):
    change, expected = WRONG_SIZES[mistake]
    assert expected in hint("08.2", SIZES | change)


@pytest.mark.parametrize("way", [list, tuple, np.array])
def test_right_sizes_are_done(way):
    assert lab.check("08.2", {cap: way(sizes) for cap, sizes in SIZES.items()}).done


@pytest.mark.parametrize("cap, options", [
    ("default", []), ("25", ["--cap", "25"]), ("0.6", ["--cap", "0.6"]), ("[0.5, 1]", ["--caps", "0.5", "1"]),
])  # fmt: skip
def test_the_right_sizes_are_those_of_the_lab(cap, options):
    run = lab.torchrun("buckets", "--layers", "8", "--width", "256", *options, show="none")
    sent = [record["bytes"] for record in run.ranks[1].records if record.get("step") == 2]
    assert [round(size / (257 * 1024)) for size in sent] == SIZES[cap]


def merged(pairs):
    found = []
    for begin, end in sorted(pairs):
        if found and begin <= found[-1][1]:
            found[-1][1] = max(end, found[-1][1])
        else:
            found.append([begin, end])
    return found


def both(one, two):
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in two)


def total(pairs):
    return sum(end - begin for begin, end in pairs)


def right(backward, communication):
    moving = merged(communication)
    return both(merged(backward), moving) / total(moving) if moving else 0.0


def two_pointers(backward, communication):
    one, two, found, i, k = merged(backward), merged(communication), 0, 0, 0
    while i < len(one) and k < len(two):
        found += max(0, min(one[i][1], two[k][1]) - max(one[i][0], two[k][0]))
        if one[i][1] < two[k][1]:
            i += 1
        else:
            k += 1
    return found / max(total(two), 1e-300)


def sliced(backward, communication):
    """By the pieces between all times."""
    times = sorted({time for pair in (*backward, *communication) for time in pair})
    middles = [((a + b) / 2, b - a) for a, b in zip(times, times[1:], strict=False)]

    def on(pairs, time):
        return any(begin < time < end for begin, end in pairs)

    moving = [(time, size) for time, size in middles if on(communication, time)]
    whole = sum(size for _, size in moving)
    return sum(size for time, size in moving if on(backward, time)) / whole if whole else 0


def in_place(backward, communication):
    """Joins in the lists that it is given, and changes their intervals where they are lists."""
    for pairs in (backward, communication):
        pairs[:] = sorted(pair if isinstance(pair, list) else list(pair) for pair in pairs)
        for number in reversed(range(1, len(pairs))):
            if pairs[number][0] <= pairs[number - 1][1]:
                pairs[number - 1][1] = max(pairs[number - 1][1], pairs.pop(number)[1])
    return right(backward, communication)


def union_less(backward, communication):
    """What both have in common: the two, less what either has."""
    one, two = total(merged(backward)), total(merged(communication))
    return (one + two - total(merged([*backward, *communication]))) / two if two else 0


@pytest.mark.parametrize("function", [right, two_pointers, sliced, in_place, union_less])
def test_a_right_share_is_done_in_several_forms(function):
    assert lab.check("08.3", function).done


def ends(pairs):
    return [(min(a for a, _ in pairs), max(b for _, b in pairs))] if pairs else []


def unsorted(backward, communication):
    """Joins what overlaps, but in the order in which it comes."""

    def joined(pairs):
        found = []
        for begin, end in pairs:
            if found and begin <= found[-1][1]:
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            else:
                found.append((begin, end))
        return found

    return both(joined(backward), joined(communication)) / total(joined(communication))


def later_end(backward, communication):
    """Takes the end of the one that begins later."""

    def joined(pairs):
        found = []
        for begin, end in sorted(pairs):
            if found and begin <= found[-1][1]:
                found[-1][1] = end
            else:
                found.append([begin, end])
        return found

    moving = joined(communication)
    return both(joined(backward), moving) / total(moving) if moving else 0.0


def one_before(backward, communication):
    """Joins each with the one before it alone, though an earlier one may reach farther."""

    def joined(pairs):
        pairs, found = sorted(pairs), []
        for number, (begin, end) in enumerate(pairs):
            if number and begin <= pairs[number - 1][1]:
                found[-1][1] = max(found[-1][1], end)
            else:
                found.append([begin, end])
        return found

    moving = joined(communication)
    return both(joined(backward), moving) / total(moving) if moving else 0.0


def rounded(unit):
    """By the units of a time that are in each."""

    def share(backward, communication):
        computing, moving = (
            {one for begin, end in pairs for one in range(round(begin / unit), round(end / unit))}
            for pairs in (backward, communication)
        )
        return len(computing & moving) / len(moving) if moving else 0.0

    return share


def gaps(backward, communication):
    """Takes off where two do not meet."""
    one, two = merged(backward), merged(communication)
    return sum(min(a[1], b[1]) - max(a[0], b[0]) for a in one for b in two) / (total(two) or 1)


def tuples_alone(backward, communication):
    return right(set(backward), set(communication))


def whole_numbers(backward, communication):
    """By the whole numbers in each."""
    computing, moving = ({one for pair in pairs for one in range(*pair)} for pairs in (backward, communication))
    return len(computing & moving) / len(moving) if moving else 0.0


WRONG_SHARES = {  # mistake: (function, the hint)
    "nothing yet": (lambda b, c: None, "gives nothing. Let it return the share"),
    "the target": (lambda b, c: 2 / 3, "it gives 0.666667 whatever it is given"),
    "of backward": (lambda b, c: both(merged(b), merged(c)) / (total(merged(b)) or 1), "that is the share of backward"),
    "not hidden": (lambda b, c: 1 - right(b, c), "that is what is not hidden"),
    "seconds": (lambda b, c: both(merged(b), merged(c)), "Divide by the time of the communication"),
    "twice": (lambda b, c: both(b, c) / (total(c) or 1), "two that travel at once are counted twice"),
    "from first to last": (lambda b, c: right(ends(b), ends(c)), "it takes all from the first beginning to the last"),
    "backward not joined": (lambda b, c: both(b, merged(c)) / (total(merged(c)) or 1), "Two parts of backward may"),
    "unsorted": (unsorted, "and it is 0.666667. The intervals need not be sorted"),
    "the later end": (later_end, "gives 1, and it is 0.6. One interval may lie within another"),
    "the one before": (one_before, "gives 0.666667, and it is 0.5. One interval may lie within another"),
    "rounded": (rounded(1), "Times are seconds, not whole numbers"),
    "milliseconds": (rounded(0.001), "an all-reduce may take less than a thousandth of one"),
    "gaps": (gaps, "two intervals that do not meet have nothing in common"),
    "tuples alone": (tuples_alone, "called as hidden_share([[3, 4], [0, 2]], [[1, 3.5]]), raises TypeError"),
    "whole numbers": (whole_numbers, "called as hidden_share([(0, 0.5)], [(0.25, 1)]), raises TypeError"),
    "nothing is sent": (lambda b, c: both(merged(b), merged(c)) / total(merged(c)), "divides by 0. Where nothing"),
    "one if nothing": (lambda b, c: right(b, c) if c else 1.0, "where nothing is sent, nothing is hidden: give 0"),
    "fails": (lambda b, c: b[99], "raises IndexError"),
    "too few arguments": (lambda b: 0, "raises TypeError"),
    "text": (lambda b, c: "2/3", "gives a str. Let it return the share"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG_SHARES)
def test_each_wrong_share_has_its_own_hint(mistake):
    function, expected = WRONG_SHARES[mistake]
    assert expected in hint("08.3", function)


@pytest.mark.parametrize("answer", [None, 2 / 3, [2 / 3]])
def test_what_is_no_function_is_said(answer):
    assert "The answer is your function" in hint("08.3", answer)
