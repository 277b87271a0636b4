"""Checks of notebook 07: its own cells are run, as they stand and with mistakes in them."""

import math

import pytest
from answering import Cells, hint, made_up_run

import ddp_lab as lab
from ddp_lab.launch.failures import HangError

CELLS = Cells("07_communication_hooks.ipynb")
cell, run_cell = CELLS.script, CELLS.run


@pytest.mark.parametrize("name, changed", [("hook", 3), ("half", 3)])
def test_a_solution_is_its_starter_with_little_changed(name, changed):
    """So a learner who opens it finds the script that they know: all lines of the starter but these few."""
    starter, solution = (set(cell(f"{which}.py")[0].splitlines()) for which in (name, f"{name}_solution"))
    assert len(starter - solution) <= changed + 1, starter - solution  # and the comment


DIVIDED = "future.value()[0] / dist.get_world_size()"
SENDS = "    work = dist.all_reduce(bucket.buffer(), async_op=True)\n"
RETURNS = f"    return work.get_future().then(lambda future: {DIVIDED})\n"
REGISTERS = "model.register_comm_hook(None, average)\n"
FUTURE = "    future = torch.futures.Future()\n    future.set_result({})\n    return future\n"
BACKWARD = "    model(x).sum().backward()\n"
NEXT, NEXT_IN = "\n    ", "\n        "
WRONG_HOOKS = {  # mistake: (edits of the solution, the hint)
    "not divided": ([(DIVIDED, "future.value()[0]")], "is the sum, 3. With a hook DDP does not divide"),
    "divided twice": ([(DIVIDED, f"{DIVIDED} / 2")], "is half of the mean, 0.75. It was divided twice"),
    "zeros": ([(DIVIDED, f"{DIVIDED} * 0")], "in step 0 the gradient is 0"),
    "something else": (
        [(DIVIDED, "future.value()[0] + 5")],
        "the gradients are 8, 8, and the mean of the ranks is 1.5",
    ),
    "typed": (
        [(SENDS, ""), (RETURNS, FUTURE.format("bucket.buffer() / (dist.get_rank() + 1) * 1.5"))],
        "no collective is called in it",
    ),
    "typed, from step 1 on": (
        [
            (SENDS, "    if bucket.buffer()[0] < 5:\n        dist.all_reduce(torch.ones(1))\n"),
            (RETURNS, FUTURE.format("bucket.buffer() / (dist.get_rank() + 1) * 1.5")),
        ],
        "in a step no rank has asked the other",
    ),
    "by hand, after backward": (
        [
            (SENDS, ""),
            (RETURNS, FUTURE.format("bucket.buffer()")),
            (
                BACKWARD,
                BACKWARD + "    for p in net.parameters():\n        dist.all_reduce(p.grad)\n        p.grad /= 2\n",
            ),
        ],
        "no collective is called in it",
    ),
    "one bucket alone": (
        [
            (
                SENDS,
                f"    if not bucket.is_last():\n    {FUTURE.format('bucket.buffer()').replace(NEXT, NEXT_IN)}" + SENDS,
            )
        ],
        "in step 1 the ranks have different gradients, 10 and 20: what a hook gives back is taken as it is",
    ),
    "not waited for": (
        [(RETURNS, FUTURE.format("bucket.buffer() / dist.get_world_size()"))],
        "yours has not added up the ranks', or has not waited for the sum",
    ),
    "divided by other numbers": (
        [(DIVIDED, "future.value()[0] / (dist.get_rank() + 1)")],
        "different gradients, 3 and 1.5. Each rank has to have the same sum, and to divide it by the same number",
    ),
    "nothing returned": ([("    return work", "    work")], "the hook returns nothing"),
    "the collective's future": ([(f".then(lambda future: {DIVIDED})", "")], "Return what its .then() gives"),
    "the work": ([(RETURNS, "    return work\n")], "the hook returns a Work. DDP wants a future"),
    "a list": ([("future.value()[0]", "future.value()")], "is a list of tensors: take the first"),
    "not asynchronous": ([(", async_op=True", "")], "with async_op=True alone"),
    "not registered": ([(REGISTERS, "")], "the numbers are DDP's own: no hook was registered"),
    "torch's own": (
        [
            (
                REGISTERS,
                "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook\n"
                "model.register_comm_hook(None, allreduce_hook)\n",
            )
        ],
        "allreduce_hook is torch's",
    ),
    "a tensor": ([(RETURNS, "    return bucket.buffer()\n")], "the hook returns a Tensor. DDP wants a future"),
    "another shape": ([(f"{DIVIDED})", f"{DIVIDED}[:0])")], "the run failed"),
    "fewer steps": ([("range(3)", "range(2)")], "2 steps, and there are 3"),
    "nothing logged": (
        [("    worker.log(step=step, gradients=[p.grad.item() for p in net.parameters()])\n", "")],
        "rank 0 did not log gradients in steps",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_HOOKS)
def test_each_wrong_hook_has_its_own_hint(mistake):
    edits, expected = WRONG_HOOKS[mistake]
    assert expected in hint("07.1", run_cell("hook_solution.py", *edits))


def test_a_future_in_which_nothing_ever_is_is_told_as_that(tmp_path):
    spots = [{"rank": rank, "file": "hook.py", "line": 26, "function": "<module>"} for rank in (0, 1)]
    hung = made_up_run([[], []], error=HangError("no sign of life", where=spots))
    for name in ("07.1", "07.4"):
        assert "backward() waits for what is in each hook's future" in hint(name, hung)


RIGHT_HOOKS = {
    "as it stands": [],
    "averaged by gloo": [
        (SENDS, SENDS.replace("async_op", "op=dist.ReduceOp.AVG, async_op")),
        (DIVIDED, "future.value()[0]"),
    ],
    "weight by weight": [
        (SENDS, "    for part in bucket.gradients():\n        dist.all_reduce(part)\n"),
        (RETURNS, FUTURE.format("bucket.buffer() / dist.get_world_size()")),
    ],
    "under a name of torch's": [("def average(", "def allreduce_hook("), ("(None, average)", "(None, allreduce_hook)")],
    "by a function of its own": [
        ("def average(state, bucket):", "def shared(bucket):"),
        (
            "dist.init_process_group()\n",
            "dist.init_process_group()\n\n\ndef average(state, bucket):\n    return shared(bucket)\n\n\n",
        ),
    ],
    "in a lambda": [("(None, average)", "(None, lambda state, bucket: average(state, bucket))")],
    "by the group itself": [
        (SENDS, "    work = dist.group.WORLD.allreduce([bucket.buffer()])\n"),
    ],
    "divided first": [
        (SENDS, "    bucket.buffer().div_(dist.get_world_size())\n" + SENDS),
        (DIVIDED, "future.value()[0]"),
    ],
    "with a wait": [
        (SENDS, "    dist.all_reduce(bucket.buffer())\n"),
        (RETURNS, FUTURE.format("bucket.buffer() / dist.get_world_size()")),
    ],
    "gathered": [
        (SENDS, "    parts = [torch.empty_like(bucket.buffer()) for _ in range(2)]\n"),
        (RETURNS, "    dist.all_gather(parts, bucket.buffer())\n" + FUTURE.format("sum(parts) / len(parts)")),
    ],
}


@pytest.mark.parametrize("way", RIGHT_HOOKS)
def test_a_right_hook_is_done_in_several_forms(way):
    assert lab.check("07.1", run_cell("hook_solution.py", *RIGHT_HOOKS[way])).done


def test_the_starters_are_told_what_is_missing():
    assert "in step 0 the ranks have different gradients, 1 and 2" in hint("07.1", run_cell("hook.py"))
    assert "70000 does not fit into float16" in hint("07.4", run_cell("half.py"))


def test_another_number_of_ranks_and_what_is_no_run_is_said():
    assert "Write --nproc 2" in hint("07.1", run_cell("hook_solution.py", nproc=3))
    for name in ("07.1", "07.4"):
        for answer in (None, 1.5, [1.5, 1.5]):
            assert "The answer is the run of your cell on 2 ranks" in hint(name, answer)


def test_a_run_that_was_not_counted_is_told_so():
    records = [{"step": step, "gradients": [mean] * 2} for step, mean in enumerate((1.5, 15.0, 150.0))]
    assert "Leave --count in the cell's first line" in hint("07.1", made_up_run([records] * 2))


BYTES = {"none": 340_008, "fp16": 170_004, "powersgd": 10_872, "topk": 6_800}
WRONG_BYTES = {  # mistake: (what is changed, the hint)
    "nothing yet": (dict.fromkeys(BYTES, ...), "no number yet for none, fp16, powersgd, topk"),
    "no biases": ({"none": 337_920}, "none: that is without the biases"),
    "numbers": ({"none": 85_002}, "that is how many numbers there are. Each has four bytes"),
    "not halved": ({"fp16": 340_008}, "fp16: its numbers have two bytes each"),
    "numbers of fp16": ({"fp16": 85_002}, "that is how many numbers there are. Each has two bytes"),
    "P and Q alone": ({"powersgd": 8_784}, "The biases, which are no matrices, are sent whole"),
    "rank 1": ({"powersgd": 6_480}, "that is rank 1"),
    "numbers of PowerSGD": ({"powersgd": 2_718}, "powersgd: that is how many numbers there are"),
    "P alone": ({"powersgd": 6_264}, "there is Q besides P"),
    "Q alone": ({"powersgd": 6_696}, "there is P besides Q"),
    "no places": ({"topk": 3_400}, "must learn of each number, too, where it belongs"),
    "long places": ({"topk": 10_200}, "the places are sent as int32"),
    "numbers of top-k": ({"topk": 850}, "that is how many numbers are sent"),
    "both ranks": ({"powersgd": 21_744}, "powersgd: twice too many. Count what one rank hands in"),
    "bits": ({"none": 2_720_064}, "none: eight times too many. Give bytes, not bits"),
    "anything": ({"topk": 17}, "topk: 17 is not it"),
    "a text": ({"none": "340008"}, "none is a str; give a whole number of bytes"),
    "a fraction": ({"topk": 6800.16}, "topk is a float"),
    "no end": ({"topk": math.inf}, "topk is a float"),
    "none yet": ({"topk": math.nan}, "topk is a float"),
}


@pytest.mark.parametrize("mistake", WRONG_BYTES)
def test_each_wrong_number_of_bytes_has_its_own_hint(mistake):
    changes, expected = WRONG_BYTES[mistake]
    assert expected in hint("07.2", BYTES | changes)


def test_the_right_bytes_are_done_and_what_are_none_is_said():
    assert lab.check("07.2", BYTES).done
    assert lab.check("07.2", BYTES | {"fp16": BYTES["none"] / 2}).done  # a float, and whole
    for answer in (None, 6, {"none": 6}, [340_008]):
        assert "a dict of four numbers, with the keys of the starter" in hint("07.2", answer)


def break_even(cost, whole, sent):
    if sent >= whole:
        return 0
    return 8 * (whole - sent) / cost if cost else math.inf


WRONG_RATES = {  # the function: the hint
    "nothing": (lambda cost, whole, sent: None, "gives nothing. Let it return the rate"),
    "a constant": (lambda cost, whole, sent: 1e9, "it gives 1e+09 whatever it is given"),
    "bytes": (lambda cost, whole, sent: (whole - sent) / cost, "that is in bytes per second"),
    "in Mbit/s": (lambda cost, whole, sent: 8 * (whole - sent) / cost / 1e6, "that is in Mbit/s"),
    "in Gbit/s": (lambda cost, whole, sent: 8 * (whole - sent) / cost / 1e9, "that is in Gbit/s"),
    "beta": (lambda cost, whole, sent: cost / (whole - sent), "that is β, the seconds per byte"),
    "seconds per bit": (lambda cost, whole, sent: cost / 8 / (whole - sent), "that is seconds per bit"),
    "the whole": (lambda cost, whole, sent: 8 * whole / cost, "it counts the whole gradient"),
    "the sent": (lambda cost, whole, sent: 8 * sent / cost, "it counts what is sent"),
    "turned round": (lambda cost, whole, sent: 8 * (sent - whole) / cost, "a rate below 0"),
    "a sum": (lambda cost, whole, sent: 8 * (sent + whole) / cost, "not their sum"),
    "something else": (lambda cost, whole, sent: whole, "gives 2.5e+06, and it is 1e+09"),
    "by zero": (lambda cost, whole, sent: 8 * (whole - sent) / cost, "divides by 0"),
    "a large number": (lambda cost, whole, sent: 8 * (whole - sent) / (cost or 1), "give math.inf"),
    "nothing saved": (
        lambda cost, whole, sent: 8 * (whole - sent) / cost if cost and sent < whole else math.inf,
        "a hook that saves no bytes pays on no link",
    ),
    "an error": (lambda cost, whole, sent: missing, "raises NameError"),  # noqa: F821
    "two arguments": (lambda cost, whole: cost, "raises TypeError"),
}


@pytest.mark.parametrize("mistake", WRONG_RATES)
def test_each_wrong_rate_has_its_own_hint(mistake):
    function, expected = WRONG_RATES[mistake]
    assert expected in hint("07.3", function)


def test_a_right_function_is_done_and_what_is_none_is_said():
    assert lab.check("07.3", break_even).done
    for answer in (None, 1e9, float, made_up_run([[]])):
        assert "not a function" in hint("07.3", answer)


HALF = "(bucket.buffer() / dist.get_world_size()).half()"
VALUE = "lambda future: future.value()[0])"
WRONG_HALVES = {  # mistake: (edits of the solution, the hint)
    "divided in halves": ([(HALF, "bucket.buffer().half() / 2")], "70000 does not fit into float16"),
    "each by itself": (
        [(HALF, "bucket.buffer().clamp(max=6e4).half()"), (VALUE, "lambda future: future.value()[0] / 2)")],
        "the sum of 30000 and 50000 does not fit",
    ),
    "bf16": ([(".half()", ".bfloat16()")], "as bfloat16's eight digits have it"),
    "too small": (
        [(HALF, "(bucket.buffer() / 3e6).half()"), (VALUE, "lambda future: future.value()[0].float() * 1.5e6)")],
        "above 6e-5 only: are numbers made so small?",
    ),
    "each by its own largest": (
        [
            (HALF, "(bucket.buffer() / bucket.buffer().max() / 2).half()"),
            (VALUE, "lambda future: future.value()[0].float() * bucket.buffer().max())"),
        ],
        "the ranks have different gradients, 35000 and 25000: each has to have the same sum",
    ),
    "nothing returned": ([("    return work", "    work")], "the hook returns nothing"),
    "whole": ([(".half()", "")], "each rank sends 12 bytes, and 6 do"),
    "divided twice": ([(VALUE, "lambda future: future.value()[0] / 2)")], "half of the mean. It was divided twice"),
    "the sum": (
        [(VALUE, "lambda future: future.value()[0].float() * 2)")],
        "the gradient is the sum",
    ),
    "clamped": ([(HALF, "(bucket.buffer().clamp(max=6e4) / 2).half()")], "the gradient is 30000, 2, 40000"),
    "alone": (
        [("    work = dist.all_reduce(numbers, async_op=True)\n", ""),
         ("    return work.get_future().then(lambda future: future.value()[0])\n", FUTURE.format("numbers"))],
        "the ranks have different gradients",
    ),
    "typed": (
        [("    work = dist.all_reduce(numbers, async_op=True)\n", "    numbers = torch.tensor([35000.5, 2, 40000])\n"),
         ("    return work.get_future().then(lambda future: future.value()[0])\n", FUTURE.format("numbers"))],
        "no rank has asked the other for its gradient in step 1",
    ),
    "one step": ([("range(2)", "range(1)")], "1 steps, and there are 2"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG_HALVES)
def test_each_wrong_half_has_its_own_hint(mistake):
    edits, expected = WRONG_HALVES[mistake]
    assert expected in hint("07.4", run_cell("half_solution.py", *edits))


RIGHT_HALVES = {
    "as it stands": [],
    "in place": [(HALF, "bucket.buffer().div_(dist.get_world_size()).to(torch.float16)")],
    "gathered": [
        (
            "    work = dist.all_reduce(numbers, async_op=True)\n",
            "    parts = [torch.empty_like(numbers) for _ in range(2)]\n"
            "    work = dist.all_gather(parts, numbers, async_op=True)\n",
        ),
        (VALUE, "lambda future: parts[0].float() + parts[1].float())"),
    ],
    "scaled by more": [
        (HALF, "(bucket.buffer() / 8).half()"),
        (VALUE, "lambda future: future.value()[0].float() * (8 / dist.get_world_size()))"),
    ],
}


@pytest.mark.parametrize("way", RIGHT_HALVES)
def test_a_right_half_is_done_in_several_forms(way):
    assert lab.check("07.4", run_cell("half_solution.py", *RIGHT_HALVES[way])).done
