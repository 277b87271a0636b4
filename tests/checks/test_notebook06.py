"""checks of notebook 06: its own cells are run, as they stand and with mistakes in them."""

import pytest
from answering import Cells, early_exit, hint, made_up_run

import ddp_lab as lab

CELLS = Cells("06_gradient_accumulation.ipynb")
cell, run_cell = CELLS.script, CELLS.run


@pytest.mark.parametrize("name, changed", [("helper", 2), ("stream", 2), ("accumulated", 5)])
def test_a_solution_is_its_starter_with_little_changed(name, changed):
    """So a learner who opens it finds the script that they know: all lines of the starter but these few."""
    starter, solution = (set(cell(f"{which}.py")[0].splitlines()) for which in (name, f"{name}_solution"))
    assert len(starter - solution) <= changed, starter - solution


COUNTS = {"micro-batches": 40, "accumulate_1": 40, "accumulate_2": 4, "accumulate_4": 6}
WRONG_COUNTS = {  # mistake: (what is changed, the hint)
    "nothing yet": (dict.fromkeys(COUNTS, ...), "no number yet for micro-batches, accumulate_1, accumulate_2"),
    "one epoch": ({"micro-batches": 20}, "one epoch's micro-batches. There are two epochs"),
    "both ranks": ({"micro-batches": 80}, "micro-batches of both ranks"),
    "windows": ({"micro-batches": 6}, "those are the windows"),
    "images": ({"micro-batches": 160}, "160 is not it. A rank has 80 images an epoch, and takes 4 at a time"),
    "no_sync at once": ({"accumulate_1": 4}, "accumulate_1 has no no_sync()"),
    "those that are used": ({"accumulate_1": 32}, "that no step of their epoch uses"),
    "calls of both, for each micro-batch": (
        {"accumulate_1": 80},
        "accumulate_1: an all-reduce of two ranks is one call on each",
    ),
    "each parameter": ({"accumulate_1": 160}, "not one for each parameter"),
    "anything": ({"accumulate_1": 17}, "accumulate_1: 17 is not it"),
    "no_sync does nothing": ({"accumulate_2": 40}, "accumulate_2 has no_sync(): one all-reduce for each window"),
    "over the epochs": ({"accumulate_2": 5}, "no window goes over the end of an epoch"),
    "closed too early": ({"accumulate_2": 6}, "does not close the last window of an epoch"),
    "not closed": ({"accumulate_4": 4}, "accumulate_4 closes the last window of an epoch too"),
    "calls of both": ({"accumulate_4": 12}, "is one call on each. Count those of one rank"),
    "anything else": ({"accumulate_4": 7}, "accumulate_4: 7 is not it"),
    "a text": ({"accumulate_4": "6"}, "accumulate_4 is a str; give a whole number"),
    "a fraction": ({"accumulate_2": 2.5}, "accumulate_2 is a float; give a whole number"),
}


@pytest.mark.parametrize("mistake", WRONG_COUNTS)
def test_each_wrong_count_has_its_own_hint(mistake):
    changes, expected = WRONG_COUNTS[mistake]
    assert expected in hint("06.1", COUNTS | changes)


def test_no_hint_hands_over_a_count_or_leads_to_another():
    assert "micro-batch" not in hint("06.1", COUNTS | {"accumulate_1": 17})  # what it has one all-reduce for
    assert "Windows that are closed in an epoch" in hint("06.1", COUNTS | {"accumulate_2": 7})


def test_the_right_counts_are_done_and_what_are_no_counts_is_said():
    assert lab.check("06.1", COUNTS).done
    for answer in (None, 6, {"steps": 6}, [40, 40, 4, 6]):
        assert "a dict of four numbers, with the keys of the starter" in hint("06.1", answer)


CONTEXT = "    with contextlib.nullcontext() if closing else model.no_sync():\n"
SIZE = "    size = min(window, batches - begin)\n"
BY_REST = "    size = min(window, batches - i)\n"
CLOSING = "    closing = i + 1 == begin + size\n"
WRONG_CONTEXTS = {  # mistake: (edits of the solution, the hint)
    "nothing in no_sync": ([(CONTEXT, "    if True:\n")], "in step 0 each rank has issued 4 all-reduces, where one"),
    "everything in no_sync": (
        [(CONTEXT, "    with model.no_sync():\n")],
        "there was no all-reduce at all, and each step is to have one",
    ),
    "turned round": (
        [(CONTEXT, "    with model.no_sync() if closing else contextlib.nullcontext():\n")],
        "what gathered in no_sync() was not all-reduced before the step",
    ),
    "the first is all-reduced": (
        [("if closing else model", "if i == begin else model")],
        "what gathered in no_sync() was not all-reduced before the step",
    ),
    "the last window open": (
        [(CLOSING, "    closing = (i + 1) % window == 0\n")],
        "4 steps, and there are 6 windows: of 10 micro-batches the last two are the third, of 9 the last",
    ),
    "divided by the window": (
        [("yield size", "yield window")],
        "the shares of step 2 add up to 0.5, not to 1: its window has 2 micro-batches, and the losses",
    ),
    "divided by a constant": (
        [("yield size", "yield window if i < 8 else 2")],
        "its window has 1 micro-batch, and the losses were divided by 2",
    ),
    "divided by nothing": ([("yield size", "yield 1")], "the shares of step 0 add up to 4, not to 1"),
    "another window": ([("WINDOW = 4", "WINDOW = 5")], "4 steps, and there are 6 windows"),
    "windows from the end": (
        [(CLOSING, "    closing = (batches - i - 1) % window == 0\n")],
        "step 0 has 4 samples, its window has 8",
    ),
    "not counted": ([], "the all-reduces were not counted. Leave --count"),
    "nothing logged": (
        [("worker.log(step=step, epoch=epoch, shares=net.weight.grad[0])", "print()")],
        "Leave worker.log(...)",
    ),
    "never closed": ([(CLOSING, "    closing = False\n")], "has logged no step. Has a micro-batch closed a window?"),
    "always closed": ([("yield size, closing", "yield size, True")], "19 steps, one for each micro-batch"),
    "turned round, what is given": (
        [("yield size, closing", "yield closing, size")],
        "Two things are given, in this order",
    ),
    "divided by what is left": (
        [(SIZE, BY_REST), (CLOSING, "    closing = (i + 1) % window == 0 or i + 1 == batches\n")],
        "not all losses of the window were divided by the same number",
    ),
    "closed by hand": (
        [(CLOSING, "    closing = i in (3, 7, 9)\n")],
        "5 steps, and there are 6 windows. Each epoch has three",
    ),
    "shared out": (
        [(CLOSING, "    closing = i + 1 in (batches, batches - 3, batches - 6)\n")],
        "step 1 has 6 samples, its window has 8",
    ),
    "an error": ([(SIZE, "    raise ValueError('boom')\n")], "the run failed (rank"),
}


@pytest.mark.parametrize("mistake", WRONG_CONTEXTS)
def test_each_wrong_context_has_its_own_hint(mistake):
    edits, expected = WRONG_CONTEXTS[mistake]
    run = run_cell("helper_solution.py", *edits)
    if mistake == "not counted":
        run._count = False
        for rank in run.ranks:
            (run.dir / f"rank{rank.rank}" / "collectives.jsonl").unlink()
    assert expected in hint("06.2", run)


RIGHT_CONTEXTS = {
    "the flag": [
        (CONTEXT + "        yield", "    model.require_backward_grad_sync = closing\n    if True:\n        yield"),
    ],
    "by the rest": [(CLOSING, "    closing = (i + 1) % window == 0 or i + 1 == batches\n")],
}


@pytest.mark.parametrize("way", RIGHT_CONTEXTS)
def test_every_context_that_has_the_counts_and_the_shares_is_right(way):
    assert lab.check("06.2", run_cell("helper_solution.py", *RIGHT_CONTEXTS[way])).done


def test_the_starter_of_the_context_is_told_what_is_missing():
    assert "in step 0 each rank has issued 4 all-reduces, where one would do" in hint("06.2", run_cell("helper.py"))
    assert "Write --nproc 2" in hint("06.2", run_cell("helper.py", nproc=1))
    assert "the answer is nothing, not a run" in hint("06.2", None)


AFTER = """    dist.all_reduce(tokens)  # of the whole step
    for p in net.parameters():
        p.grad *= world_size / tokens  # DDP has divided by world_size
"""
SUM = "            loss = model(sequence).sum()\n"
SENT = """        count = torch.tensor(len(sequence))
        dist.all_reduce(count)
        tokens += count
"""
WRONG_STREAMS = {  # mistake: (edits of the solution, the hint)
    "means": ([(SUM, SUM.replace("sum", "mean"))], "a token that is a sequence by itself weighs"),
    "no world size": ([("world_size / tokens", "1 / tokens")], "every token weighs the same, and half of 1/20"),
    "own tokens": ([("    dist.all_reduce(tokens)  # of the whole step\n", "")], "the ranks' gradients differ"),
    "own tokens, before": (
        [
            (AFTER, ""),
            ("            loss.backward()", "            (loss / sum(lengths[rank::2])).backward()"),
        ],
        "each rank has divided by its own tokens, and DDP takes the mean of that",
    ),
    "not divided": ([(AFTER, "    dist.all_reduce(tokens)\n")], "the same, and 10 times 1/20. What has divided"),
    "twice": ([("world_size / tokens", "2 * world_size / tokens")], "every token weighs twice 1/20"),
    "all in no_sync": ([("if last else", "if False else")], "Is the last micro-batch all-reduced"),
    "tokens sent each time": (
        [
            ("        tokens += len(sequence)\n", SENT),
            ("    dist.all_reduce(tokens)  # of the whole step\n", ""),
        ],
        "every token weighs the same. But there were 5 all-reduces in a step, and two do",
    ),
    "known without asking": (
        [("    dist.all_reduce(tokens)  # of the whole step\n", "    tokens = sum(lengths)\n")],
        "no rank has asked the other how many tokens it has",
    ),
    "known, and asked for show": (
        [("  # of the whole step\n", "\n    tokens = sum(lengths)\n")],
        "the number comes from the lists of which the stream is made",
    ),
    "known from STEPS, and asked for show": (
        [("  # of the whole step\n", "\n    tokens = sum(STEPS[step])\n")],
        "the number comes from the lists of which the stream is made",
    ),
    "all sequences on each rank": ([("[rank::world_size]", "")], "nothing depends on the rank: each reads all"),
    "one step": ([("enumerate(STEPS)", "enumerate(STEPS[:1])")], "1 steps, and there are two"),
    "shares cut": ([("[0, : sum(lengths)]", "[0, :4]")], "step 0 has logged 4 shares, and it has 20 tokens"),
    "an error": ([(SUM, "            raise ValueError('boom')\n")], "the run failed (rank"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG_STREAMS)
def test_each_wrong_sum_of_a_stream_has_its_own_hint(mistake):
    edits, expected = WRONG_STREAMS[mistake]
    assert expected in hint("06.3", run_cell("stream_solution.py", *edits))


def test_a_stream_that_is_read_to_its_end_first_is_right_too():
    ahead = (
        "    window = list(stream(lengths))\n"
        "    tokens = torch.tensor(float(sum(len(sequence) for sequence, _ in window)))\n"
        "    dist.all_reduce(tokens)\n"
        "    for sequence, last in window:\n"
    )
    edits = [
        ("    tokens = torch.zeros(())\n    for sequence, last in stream(lengths):\n", ahead),
        ("            loss.backward()", "            (loss * world_size / tokens).backward()"),
        ("        tokens += len(sequence)\n" + AFTER, ""),
    ]
    assert lab.check("06.3", run_cell("stream_solution.py", *edits)).done


RIGHT_STREAMS = {
    "the shares named before they are logged": [
        ("    worker.log(step=step, shares=net.weight.grad[0, : sum(lengths)])\n",
         "    shares = net.weight.grad[0, : sum(lengths)]\n    worker.log(step=step, shares=shares)\n"),
    ],
    "the number sent with the gradients": [
        ("if last else", "if False else"),
        (AFTER,
         "    sums = torch.cat([net.weight.grad[0], tokens[None]])\n    dist.all_reduce(sums)\n"
         "    net.weight.grad[0] = sums[:-1] / sums[-1]\n"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", RIGHT_STREAMS)
def test_a_stream_that_counts_in_another_way_is_right_too(way):
    assert lab.check("06.3", run_cell("stream_solution.py", *RIGHT_STREAMS[way])).done


RIGHT_WAYS_TO_ASK = {
    "all_gather": (
        "    own = [torch.zeros(()) for _ in range(2)]\n    dist.all_gather(own, tokens)\n    tokens = sum(own)\n"
    ),
    "all_gather_object": (
        "    own = [None] * world_size\n    dist.all_gather_object(own, tokens.item())\n    tokens = sum(own)\n"
    ),
    "reduce": "    dist.reduce(tokens, 0)\n    dist.broadcast(tokens, 0)\n",
}  # fmt: skip


@pytest.mark.parametrize("way", RIGHT_WAYS_TO_ASK)
def test_the_number_of_all_tokens_may_come_by_other_collectives(way, capsys):
    run = run_cell("stream_solution.py", ("    dist.all_reduce(tokens)  # of the whole step\n", RIGHT_WAYS_TO_ASK[way]))
    assert lab.check("06.3", run).done
    assert "with 1 all-reduce, " in capsys.readouterr().out  # and what else was counted


def test_the_starter_of_the_stream_is_told_what_is_missing():
    assert "each loss is a mean over its own tokens. Add up sums, and divide once" in hint(
        "06.3", run_cell("stream.py")
    )
    assert "the answer is an int, not a run" in hint("06.3", 3)


@pytest.fixture(scope="module")
def target():
    return run_cell("one_batch.py")


CLIP = "            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n"
SCHEDULE = "            scheduler.step()\n"
REDUCE = "            dist.all_reduce(mean)\n"
BACKWARD = "            (loss / size).backward()\n"
CHOICE = "nullcontext() if closing else"
STEP = "            optimizer.step()\n"
CLEAR = "            optimizer.zero_grad()\n"
LOSS = "            loss = cross_entropy"
RATE = '            rate = optimizer.param_groups[0]["lr"]\n'
LOG = "            worker.log(step=step, loss=mean, rate=rate, weights=weights)\n"
GATHER = """            batches = [torch.zeros_like(batch) for _ in range(world_size)]
            dist.all_gather(batches, batch)
            batches = torch.cat(batches)
"""
CLIP_FUNCTION = [
    (CLIP, "            clip()\n"),
    ("WINDOW = 4\n", "WINDOW = 4\ndef clip():\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n"),
]
NEXT = "        if not closing:\n            continue\n        with contextlib.nullcontext():\n"
IN_WINDOWS = """    for begin in range(0, len(micro_batches), WINDOW):
      for i in range(begin, min(begin + WINDOW, len(micro_batches))):
        batch = micro_batches[i]
"""
NESTED = [  # the loop over the micro-batches in one over the windows
    ("    for i, batch in enumerate(micro_batches):\n", IN_WINDOWS),
    ("        begin = i // WINDOW * WINDOW\n", ""),
    ("        if closing:\n", "      with contextlib.nullcontext():\n"),
]
WRONG_REPAIRS = {  # mistake: (edits of the solution, the hint)
    "the last window": (
        [("closing = i + 1 == begin + size", "closing = (i + 1) % WINDOW == 0")],
        "4 steps, and the twin has 6. Of each epoch's 10 micro-batches the last two are in no step",
    ),
    "clipped inside": ([(CLIP, ""), (BACKWARD, BACKWARD + CLIP)], "the gradients are clipped after each micro-batch"),
    "not clipped": ([(CLIP, "")], "No clip_grad_norm_() stands in this cell"),
    "scheduled inside": (
        [(SCHEDULE, ""), ("        mean += loss", "        scheduler.step()\n        mean += loss")],
        "the learning rate of step 0 is 0.125, the twin's 0.5. The schedule counts effective steps",
    ),
    "not scheduled": ([(SCHEDULE, "")], "the learning rate of step 1 is 0.5, the twin's 0.467"),
    "the last loss": ([("loss=mean", "loss=loss")], "all weights are right. The ranks log different losses of step 0"),
    "the rank's loss": ([(REDUCE, "")], "all weights are right. The ranks log different losses of step 0"),
    "the sum of the losses": (
        [("loss.detach() / size / world_size", "loss.detach() / size")],
        "of the whole window, on both ranks (1e-06 is asked). It is 2 times that",
    ),
    "loss of the last, of all": (
        [("        mean += loss.detach() / size / world_size\n", "        mean = loss.detach() / world_size\n")],
        "In step 0 it is off by 0.2 from that of the whole window, on both ranks",
    ),
    "the loss rounded": ([("loss=mean", "loss=round(mean.item(), 3)")], "(1e-06 is asked)."),
    "all in no_sync": (
        [(CHOICE, "nullcontext() if False else")],
        "weights differ after step 0, in which no gradients were all-reduced",
    ),
    "the first all-reduced": (
        [(CHOICE, "nullcontext() if i == begin else")],
        "weights differ after step 0. Is it the closing micro-batch that is all-reduced",
    ),
    "nothing closed": (
        [("closing = i + 1 == begin + size", "closing = False")],
        "no step was logged. Has a micro-batch closed a window?",
    ),
    "logged by one rank": ([(LOG, f"            if rank == 0:\n    {LOG}")], "the ranks have logged 6 and 0 steps"),
    "in float32": (
        [(".double())\noptimizer", ")\noptimizer"), ("images = images.double()\n", "")],
        "So near, it is rounding: leave the model, the images and what is logged in float64, and clip by",
    ),
    "weights in float32": ([("p.detach().abs()", "p.detach().float().abs()")], "and 1e-09 is asked"),
    "rate in float32": ([("rate=rate", "rate=torch.tensor(rate)")], "the learning rate of step 1: off by 1e-08"),
    "clipped after the step": ([(CLIP, ""), (STEP, STEP + CLIP)], "clipped after optimizer.step(), which has used"),
    "clipped to another length": (
        [("parameters(), 0.5)", "parameters(), 1.0)")],
        "up to step 0, and not after step 1. What is left over from the step before, and is this one clipped",
    ),
    "all images on each rank": (
        [("[rank::world_size]", ""), ("WINDOW = 4", "WINDOW = 8")],
        "nothing depends on the rank: each computes all images, with 2 all-reduces in a step",
    ),
    "one rank's weights sent to all": (
        [("[rank::world_size]", ""), ("WINDOW = 4", "WINDOW = 8"), (CHOICE, "nullcontext() if False else"),
         (STEP, STEP + "            for p in model.parameters():\n                dist.broadcast(p.data, 0)\n")],
        "no gradients were all-reduced in step 0 (counted: 1 all-reduce, 4 broadcast in a step)",
    ),
    "the images sent to all": (
        [(CHOICE, "nullcontext() if False else"), (LOSS, GATHER + LOSS),
         ("model(images[batch]), labels[batch])", "model(images[batches]), labels[batches])")],
        "no gradients were all-reduced in step 0 (counted: 1 all-reduce, 4 all_gather in a step)",
    ),
    "the short window divided": ([("loss / size)", "loss / (400 if i > 7 else size))")], "whose window is short"),
    "cleared each time": (
        [(CLEAR, ""), (LOSS, CLEAR + LOSS)],
        "off from the first step on, on both ranks alike",
    ),
    "scheduled first": (
        [(SCHEDULE, ""), (STEP, SCHEDULE + STEP)],
        "scheduler.step() stands before optimizer.step(), which then takes the next step's rate",
    ),
    "rate noted late": (
        [("            rate = optimizer", "            pass  # "), (SCHEDULE, SCHEDULE + RATE)],
        "the learning rate of step 0 is the one of the next step. Note it before scheduler.step()",
    ),
    "cleared each time, clipped by a function": (
        [(CLEAR, ""), (LOSS, CLEAR + LOSS), *CLIP_FUNCTION],
        "off from the first step on, on both ranks alike",
    ),
    "cleared each time, gone on before the clip": (
        [(CLEAR, ""), (LOSS, CLEAR + LOSS), ("        if closing:\n", NEXT)],
        "off from the first step on, on both ranks alike",
    ),
    "cleared each time, the windows in a loop of their own": (
        [(CLEAR, ""), (LOSS, CLEAR + LOSS), *NESTED],
        "off from the first step on, on both ranks alike",
    ),
    "clipped under a condition that says nothing": (
        [(CLIP, ""), (BACKWARD, BACKWARD + "            if size:\n    " + CLIP)],
        "off from the first step on, on both ranks alike. What is divided, clipped and cleared",
    ),
    "the short window divided, and clipped by a function": (
        [("loss / size)", "loss / (400 if i > 7 else size))"), *CLIP_FUNCTION],
        "whose window is short",
    ),
    "whole batches on each rank": (
        [
            ("[rank::world_size].split(4)", ".split(32)"),
            ("WINDOW = 4", "WINDOW = 1"),
            ("model(images", "model.module(images"),
        ],
        "no gradients were all-reduced in step 0 (counted: 1 all-reduce in a step)",
    ),
    "a window at a time": (
        [(".split(4)", ".split(16)"), ("WINDOW = 4", "WINDOW = 1")],
        "with 16 images at a time, and there is memory for 4",
    ),
    "no no_sync": ([(CHOICE, "nullcontext() if True else")], "with 5 all-reduces in a step. Two do"),
    "an error": ([(REDUCE, "            raise ValueError('boom')\n")], "the run failed (rank"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG_REPAIRS)
def test_each_wrong_repair_has_its_own_hint(mistake, target):
    edits, expected = WRONG_REPAIRS[mistake]
    assert expected in hint("06.4", {"target": target, "run": run_cell("accumulated_solution.py", *edits)})


MEAN = "            mean = torch.zeros(()).double()\n"
ADD = "        mean += loss.detach() / size / world_size\n"
RIGHT_LOSSES = {
    "float32": [(MEAN, MEAN.replace(".double()", ""))],
    "a float32 of it": [("loss=mean", "loss=mean.float()")],
    "of a list": [
        (MEAN, "            losses = []\n"), (ADD, "        losses.append(loss.item())\n"),
        (REDUCE, "            mean = torch.tensor(losses).mean() / world_size\n" + REDUCE),
    ],
}  # fmt: skip


def test_what_else_was_sent_is_said(target, capsys):
    gather = "            own = [torch.zeros_like(mean) for _ in range(2)]\n            dist.all_gather(own, mean)\n"
    run = run_cell("accumulated_solution.py", (REDUCE, gather + "            mean = sum(own)\n"))
    assert lab.check("06.4", {"target": target, "run": run}).done
    assert "with 1 all-reduce, 1 all_gather in a step" in capsys.readouterr().out


@pytest.mark.parametrize("way", RIGHT_LOSSES)
def test_a_loss_that_was_added_up_in_float32_is_right(way, target, capsys):
    assert lab.check("06.4", {"target": target, "run": run_cell("accumulated_solution.py", *RIGHT_LOSSES[way])}).done
    assert "with 2 all-reduces in a step" in capsys.readouterr().out


def test_the_starter_is_led_from_mistake_to_mistake(target):
    closing = [
        (
            "closing = (i + 1) % WINDOW == 0",
            "closing = (i + 1) % WINDOW == 0 or i == 9\n        size = 4 if i < 8 else 2",
        ),
        ("(loss / WINDOW)", "(loss / size)"),
    ]
    schedule = [("        scheduler.step()\n", ""), (CLEAR, CLEAR + SCHEDULE)]
    clip = [(CLIP + "        rate", "        rate"), (STEP, CLIP + STEP)]
    expected = ["4 steps", "learning rate of step 0", "clipped after each", "different losses"]
    edits = [[], closing, closing + schedule, closing + schedule + clip]
    for own, text in zip(edits, expected, strict=True):
        assert text in hint("06.4", {"target": target, "run": run_cell("accumulated.py", *own)})


def test_both_runs_are_wanted(target):
    assert "Give both runs" in hint("06.4", target)
    assert "`target` is to be the run of one_batch.py" in hint("06.4", {"target": None, "run": target})
    assert "the run had 1 rank" in hint("06.4", {"target": target, "run": target})


@pytest.mark.parametrize("name", ["06.2", "06.3"])
def test_a_hang_and_a_failure_are_told_first(name):
    assert "the run hung" in hint(name, made_up_run([[], []], error=early_exit().error))
    assert "Mend that first" in hint(name, made_up_run([[], []], error=RuntimeError("rank 1 failed")))
