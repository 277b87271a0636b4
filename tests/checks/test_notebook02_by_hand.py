"""checks of notebook 02's second half: its own cells are run, as they stand and with mistakes in them."""

import pytest
from answering import Cells, hint, made_up_run

import ddp_lab as lab
from ddp_lab.launch.failures import HangError

CELLS = Cells("02_collectives_and_ddp_by_hand.ipynb")
cell, run_cell = CELLS.script, CELLS.run


@pytest.mark.parametrize("name, changed", [("ring", 0), ("buckets", 1), ("sync_batchnorm", 3)])
def test_a_solution_is_its_starter_with_little_changed(name, changed):
    """So a learner who opens it finds the script that they know: all lines of the starter but these few."""
    starter, solution = (cell(f"{which}.py")[0].splitlines() for which in (name, f"{name}_solution"))
    missing = [line for line in starter if line not in solution and "# your turn" not in line]
    assert len(missing) <= changed, missing


def test_the_exercise_of_the_ring_begins_with_the_cell_above_it():
    first = cell("reduce_scatter.py")[0].split("\ndist.barrier()")[0]
    assert cell("ring.py")[0].startswith(first)


# ---- 02.4

SECOND = (
    "    mine, here = chunks[(rank - step + 1) % size], chunks[(rank - step) % size]\n"
    "    exchange(mine, right, here, left)\n"
)
WHOLE = (
    "    other = torch.empty_like(t)\n"
    "    exchange(t, right, other, left)\n"
    "    number = (rank - step) % size\n"
    "    chunks[number].copy_(other.tensor_split(size)[number])\n"
)
LEFTWARDS = (
    "    mine, here = chunks[(rank + step + 1) % size], chunks[(rank + step + 2) % size]\n"
    "    exchange(mine, left, here, right)\n"
)
WRONG_ROUNDS = {  # mistake: (edits of the solution, the hint)
    "added": (
        [("exchange(mine, right, here, left)", "exchange(mine, right, theirs, left)\n    here += theirs")],
        "some rank is in it more than once. What comes now is complete: it replaces",
    ),
    "begun with another chunk": (
        [("(rank - step + 1) % size], chunks[(rank - step)", "(rank - step) % size], chunks[(rank - step - 1)")],
        "has 1 of 4 chunks complete, not 2. In each round a rank sends the chunk that it got complete last",
    ),
    "received into the complete one": (
        [("(rank - step + 1) % size], chunks[(rank - step)", "(rank - step) % size], chunks[(rank - step + 1)")],
        "which was complete before: what came was not. Which chunk has a rank complete after the first loop?",
    ),
    "one place of each": (
        [("exchange(mine, right, here, left)", "exchange(mine[:1].clone(), right, here[:1], left)")],
        "others are not: on rank 0 t goes from 1 to 4004. Receive into the whole chunk",
    ),
    "broadcast": (
        [(SECOND, "    for n in range(size):\n        dist.broadcast(chunks[n], (n - 1) % size)\n")],
        "right, but by broadcast. Here it is to be done by sends",
    ),
    "all_reduce": (
        [(SECOND, "    t.fill_(10.0**rank)\n    dist.all_reduce(t)\n")],
        "right, but by all_reduce. Here it is to be done by sends",
    ),
    "whole tensors": ([(SECOND, WHOLE)], "rank 0 has sent 36,000 bytes, not 14,400. One chunk a round is enough"),
    "to the left": ([(SECOND, LEFTWARDS)], "rank 0 sends to ranks 1, 3. Send to the right only"),
    "the same chunk each time": (
        [("mine, here = chunks[(rank - step + 1) % size]", "mine, here = chunks[(rank + 1) % size]")],
        "chunk 2 of rank 0 ends in 1111, not 3333: it holds another chunk's numbers. Send on what came",
    ),
    "renamed": (
        [("exchange(mine, right, here, left)", "exchange(mine, right, theirs, left)\n    here = theirs")],
        "`here = theirs` would be a name alone",
    ),
    "known beforehand": ([(SECOND, "    t.fill_(1111)\n")], "has sent 7,200 bytes, not 14,400. They did not come"),
    "one round": (
        [("    exchange(mine, right, here", "    if step == 0: exchange(mine, right, here")],
        "after round 5 each rank has 2 of 4 chunks complete, as after round 4: nothing new",
    ),
    "nothing logged": (
        [("    worker.log(step=size + step, chunks=[chunk[0] for chunk in chunks])\n", "")],
        "logged its chunks in 4 of 7 places",
    ),
    "no end logged": (
        [("worker.log(least=t.min(), most=t.max(), last=t[299::300])\n", "")],
        "did not log least and most",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_ROUNDS)
def test_each_wrong_second_phase_has_its_own_hint(mistake):
    edits, expected = WRONG_ROUNDS[mistake]
    assert expected in hint("02.4", run_cell("ring_solution.py", *edits))


def test_the_starter_of_the_ring_is_told_what_is_missing_and_the_solution_is_right():
    assert "after round 4 each rank has 1 of 4 chunks complete, as after round 3: nothing new" in hint(
        "02.4", run_cell("ring.py")
    )
    assert "Write --nproc 4" in hint("02.4", run_cell("ring_solution.py", nproc=3))
    assert lab.check("02.4", run_cell("ring_solution.py")).done


def test_all_in_send_is_told_as_such():
    """What a real run reports of `dist.send(...)` before `dist.recv(...)`."""
    spots = [{"rank": rank, "collective": "send"} for rank in range(4)]
    text = hint("02.4", made_up_run([[] for _ in spots], error=HangError("no sign of life", where=spots)))
    assert "all ranks stand in send, and nobody receives" in text
    spots[0]["collective"] = "barrier"
    other = hint("02.4", made_up_run([[] for _ in spots], error=HangError("no sign of life", where=spots)))
    assert "the run hung" in other and "stand in send" not in other


# ---- 02.5

FILL = (
    "    bucket = []\n"
    "    for p in params:\n"
    "        if sum(gradient.nbytes for gradient in [*bucket, p.grad]) > LIMIT:\n"
    "            average(bucket)\n"
    "            bucket = []\n"
    "        bucket.append(p.grad)\n"
    "    average(bucket)  # the last one is not full, and has to go, too\n"
)
AFTER = FILL.replace(
    "        if sum(gradient.nbytes for gradient in [*bucket, p.grad]) > LIMIT:\n"
    "            average(bucket)\n            bucket = []\n        bucket.append(p.grad)\n",
    "        bucket.append(p.grad)\n        if sum(gradient.nbytes for gradient in bucket) > LIMIT:\n"
    "            average(bucket)\n            bucket = []\n",
).replace("    average(bucket)  #", "    if bucket: average(bucket)  #")
WRONG_BUCKETS = {  # mistake: (edits of the solution, the hint)
    "the last one forgotten": (
        [("    average(bucket)  # the last one is not full, and has to go, too\n", "")],
        "34,048 of 50,688 bytes were reduced. What lies in the bucket when the loop ends?",
    ),
    "closed when it is too full": ([(FILL, AFTER)], "a bucket has 25,344 bytes, more than 20,000. Look before"),
    "never emptied": (
        [("            average(bucket)\n            bucket = []\n", "            average(bucket)\n")],
        "42,496, 50,688 bytes, one more than the other. Is the bucket emptied when it has gone?",
    ),
    "each by itself": (
        [(FILL, "    for p in params:\n        average([p.grad])\n")],
        "12 all-reduces in step 0, one for each gradient, where 3 are enough",
    ),
    "a layer each": (
        [(FILL, "    for p, q in zip(params[::2], params[1::2]):\n        average([p.grad, q.grad])\n")],
        "6 all-reduces in step 0, where 3 are enough. Fill a bucket before it goes",
    ),
    "all in one": ([(FILL, "    average([p.grad for p in params])\n")], "one all-reduce of 50,688 bytes"),
    "some twice": (
        [(FILL, FILL + "    average(bucket)\n")],
        "67,328 bytes were reduced, and there are 50,688: some more than once",
    ),
    "copied from DDP": (
        [(FILL, "    for p, twin in zip(params, twins):\n        p.grad.copy_(twin.grad)\n")],
        "no all-reduce in step 0",
    ),
    "elements for bytes": (
        [("gradient.nbytes for", "gradient.numel() for")],
        "Close the bucket before its `.nbytes` exceed LIMIT",
    ),
    "a sum": ([("    flat /= dist.get_world_size()\n", "")], "from DDP's. Divided by the number of ranks"),
    "not copied back": (
        [("        gradient.copy_(part.view_as(gradient))", "        part.view_as(gradient)")],
        "copied back into every p.grad,",
    ),
    "later steps otherwise": (
        [("    bucket = []\n    for p in params:", "    bucket = []\n    for p in params[: 12 if step == 0 else 0]:")]
        + [("    average(bucket)  #", "    if bucket: average(bucket)  #")],
        "no all-reduce in step 1",
    ),
    "nothing logged": (
        [("    worker.log(step=step, gradients_to_ddp=gap)\n", "")],
        "logged gradients_to_ddp in 0 of the 3 steps",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_BUCKETS)
def test_each_wrong_bucket_has_its_own_hint(mistake):
    edits, expected = WRONG_BUCKETS[mistake]
    assert expected in hint("02.5", run_cell("buckets_solution.py", *edits))


def test_the_starter_of_the_buckets_is_told_what_is_missing():
    assert "one all-reduce of 50,688 bytes. Close the bucket" in hint("02.5", run_cell("buckets.py"))
    assert "Write --nproc 2" in hint("02.5", run_cell("buckets_solution.py", nproc=1))


RIGHT_BUCKETS = {
    "the first layer first": ("[::-1], list(ddp.parameters())[::-1]", ", list(ddp.parameters())"),
    "AVG": ("(flat)\n    flat /= dist.get_world_size()\n", "(flat, dist.ReduceOp.AVG)\n"),
}


@pytest.mark.parametrize("way", RIGHT_BUCKETS)
def test_other_buckets_that_keep_the_limit_are_right(way):
    assert lab.check("02.5", run_cell("buckets_solution.py", RIGHT_BUCKETS[way])).done


# ---- 02.6

SUMS = "sums = torch.cat([x.sum(0), (x * x).sum(0), x.new_tensor([len(x)])])\n"
REDUCE = "        dist.all_reduce(sums)\n"
TAKE = (
    "        n = sums[-1].item()\n"
    "        mean, squares = (sums[:-1] / n).chunk(2)\n"
    "        var = squares - mean**2\n"
)
FORWARD = "        " + SUMS + REDUCE + TAKE
BACKWARD = REDUCE + "        all_weight"
N = "* n / (n - 1), momentum)"
OWN_MEANS = (
    "        sums = torch.cat([x.mean(0), {}])\n"
    "        dist.all_reduce(sums)\n"
    "        n, (mean, squares) = 9, (sums / 3).chunk(2)\n"
)
WITHIN = FORWARD + (
    "        var = len(x) * x.var(0, unbiased=False)\n"
    "        dist.all_reduce(var)\n"
    "        var /= n\n"
)
CHUNK = "        all_weight, all_bias = sums.chunk(2)\n"
ROOT = "inverse = (var + eps).rsqrt()"
HAND_BACK = "return grad_x, grad_weight, grad_bias,"
WRONG_NORMS = {  # mistake: (edits of the solution, the hint)
    "no collective at all": ([(REDUCE, "")], "each rank still normalises by the mean and variance of its own rows"),
    "a mean of means": (
        [(FORWARD, OWN_MEANS.format("x.var(0, unbiased=False)") + "        var = squares\n")],
        "the mean of the ranks' means, as if they had equally many rows. They have 4, 3, 2",
    ),
    "means of values and of squares": (
        [(FORWARD, OWN_MEANS.format("(x * x).mean(0)") + "        var = squares - mean**2\n")],
        "the mean of the ranks' means, as if they had equally many rows",
    ),
    "a mean of variances": ([(FORWARD, WITHIN)], "a mean of the ranks' variances, and lacks what lies between their"),
    "the rank's own variance": (
        [(TAKE, TAKE + "        var = x.var(0, unbiased=False)\n")],
        "the mean is that of all rows, the variance that of each rank's own",
    ),
    "normalised by the unbiased variance": (
        [(ROOT, "inverse = (var * n / (n - 1) + eps).rsqrt()")],
        "normalised by the unbiased variance, which belongs to running_var alone",
    ),
    "no mean in the variance": ([("squares - mean**2", "squares")], "m = Σx / n, v = Σx² / n − m²"),
    "biased": ([(N, ", momentum)")], "it takes the biased variance. Here belongs the unbiased variance of all"),
    "unbiased by the rank's rows": (
        [(N, "* len(x) / (len(x) - 1), momentum)")],
        "it takes n for this rank's rows. Here belongs",
    ),
    "the rank's own variance runs": ([("lerp_(var " + N, "lerp_(x.var(0), momentum)")], "of each rank's own rows"),
    "the rank's own mean runs": (
        [("lerp_(mean, momentum)", "lerp_(x.mean(0), momentum)")],
        "it takes the mean of each rank's own rows. Here belongs the mean of all rows",
    ),
    "momentum turned round": (
        [("lerp_(mean, momentum)", "lerp_(mean, 1 - momentum)")],
        "momentum 0.1 is the share of the new value here, not of the old",
    ),
    "running statistics not kept": (
        [("running_mean.lerp_(mean", "running_mean = running_mean.lerp(mean")],
        "it has not moved. Change it in place",
    ),
    "taken whole": ([("running_mean.lerp_(mean, momentum)", "running_mean.copy_(mean)")], "taken the new value whole"),
    "another momentum": ([("lerp_(mean, momentum)", "lerp_(mean, 0.3)")], "Here belongs the mean of all rows"),
    "no collective in backward": (
        [(BACKWARD, "        all_weight")],
        "it has the sums over this rank's rows. The other rows have a part in m and v, too",
    ),
    "a local backward": (
        [(BACKWARD, "        all_weight"), ("ctx.n = n", "ctx.n = len(x)")],
        "it has the sums over this rank's rows",
    ),
    "n of this rank": ([("ctx.n = n", "ctx.n = len(x)")], "either n is not that of all ranks, or the sums are means"),
    "means in backward": (
        [(BACKWARD, REDUCE + "        sums /= 3\n        all_weight")],
        "either n is not that of all ranks, or the sums are means (AVG)",
    ),
    "m and v taken for constants": (
        [("(g - all_bias / ctx.n - normal * all_weight / ctx.n)", "g")],
        "it takes m and v for constants",
    ),
    "one term": ([(" - normal * all_weight / ctx.n", "")], "both sums and n over all ranks"),
    "sums of all handed back": (
        [(HAND_BACK, "return grad_x, all_weight, all_bias,")],
        "those of the weight do not add up to the whole batch's: every rank hands back the sum of all",
    ),
    "the bias handed back summed": (
        [(HAND_BACK, "return grad_x, grad_weight, all_bias,")],
        "those of the bias do not add up to the whole batch's: every rank hands back the sum of all",
    ),
    "divided already": ([(HAND_BACK, "return grad_x, grad_weight / 3, grad_bias / 3,")], "Hand back the sum over this"),
    "two collectives in forward": (
        [(SUMS + REDUCE, SUMS + "        dist.all_reduce(sums[:-1])\n        dist.all_reduce(sums[-1:])\n")],
        "all numbers are right, with 3 collectives in a step",
    ),
    "two in backward": (
        [(REDUCE + CHUNK, CHUNK + "        dist.all_reduce(all_weight)\n        dist.all_reduce(all_bias)\n")],
        "all numbers are right, with 3 collectives in a step",
    ),
    "not compared": ([("compare(SyncBatchNorm.apply)\n", "")], "rank 0 logged no x in step 0"),
}


@pytest.mark.parametrize("mistake", WRONG_NORMS)
def test_each_wrong_norm_has_its_own_hint(mistake):
    edits, expected = WRONG_NORMS[mistake]
    assert expected in hint("02.6", run_cell("sync_batchnorm_solution.py", *edits))


RIGHT_NORMS = {
    "gathered": (
        SUMS + REDUCE,
        SUMS + "        all_sums = [torch.empty_like(sums) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(all_sums, sums)\n        sums = sum(all_sums)\n",
    ),
    "the mean of the sums handed back": (HAND_BACK, "return grad_x, all_weight / 3, all_bias / 3,"),
}


@pytest.mark.parametrize("way", RIGHT_NORMS)
def test_other_ways_to_the_whole_batch_are_right(way):
    assert lab.check("02.6", run_cell("sync_batchnorm_solution.py", RIGHT_NORMS[way])).done


def test_the_starter_of_the_norm_is_told_what_is_missing():
    assert "each rank still normalises by the mean and" in hint("02.6", run_cell("sync_batchnorm.py"))
    assert "Write --nproc 3" in hint("02.6", run_cell("sync_batchnorm_solution.py", nproc=2))


# ---- all three


@pytest.mark.parametrize("name", ["02.4", "02.5", "02.6"])
@pytest.mark.parametrize("answer", [None, 3, {}, "done"])
def test_what_is_no_run_is_told_as_such(name, answer):
    assert "not a run" in hint(name, answer)


@pytest.mark.parametrize("name, solution", [("02.4", "ring"), ("02.5", "buckets"), ("02.6", "sync_batchnorm")])
def test_a_run_that_was_not_counted_is_told_as_such(name, solution, tmp_path):
    script, nproc = cell(f"{solution}_solution.py")
    (tmp_path / "own.py").write_text(script)
    assert "Leave --count" in hint(name, lab.torchrun(str(tmp_path / "own.py"), nproc=nproc, show="none"))
