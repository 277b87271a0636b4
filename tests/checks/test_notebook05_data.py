"""checks of the second half of notebook 05: its own cells are run, as they stand and with mistakes in them."""

import pytest
from answering import Cells, early_exit, hint, made_up_run

import ddp_lab as lab
from ddp_lab.launch.torchrun import launch

CELLS = Cells("05_samplers.ipynb")
cell, run_cell = CELLS.script, CELLS.run


@pytest.mark.parametrize("name, changed", [("stream", 1), ("weighted", 2), ("rest", 3)])
def test_a_solution_is_its_starter_with_little_changed(name, changed):
    starter, solution = (set(cell(f"{which}.py")[0].splitlines()) for which in (name, f"{name}_solution"))
    missing = [line for line in starter - solution if line.strip() and not line.startswith("import")]
    assert len(missing) <= changed, missing


# ---- 05.4

PART = "own * self.world_size + self.rank, 13, workers * self.world_size"
ALONE = "(me.id, me.num_workers) if me else (0, 1)"
THREE_AND_ONE = f"""mine = range(self.rank, 13, 3)
        yield from (mine[:3], mine[3:])[own] if workers == 2 else range({PART})"""
WRONG_STREAMS = {  # mistake: (edits of the solution, the hint)
    "by rank alone": ([(PART, "self.rank, 13, self.world_size")], "with 2 workers each sample is read 2 times, by all"),
    "by worker alone": ([(PART, "own, 13, workers")], "with 0 workers each of the 3 ranks goes through all"),
    "by worker where there are some": (
        [(PART, "*((own, 13, workers) if me else (self.rank, 13, self.world_size))")],
        "with 2 workers each rank reads every sample: it is split over the workers, and not over the ranks",
    ),
    "no worker forgotten": ([(ALONE, "(me.id, me.num_workers)")], "with 0 workers get_worker_info() is None"),
    "two with one number": (
        [(PART, "own + self.rank, 13, workers * self.world_size")],
        "4 samples, such as 4, are never read, and 4 samples, such as 1, are read more than once. Have two workers one",
    ),
    "the remainder dropped": ([(", 13, ", ", 13 - 13 % (workers * self.world_size), ")], "sample 12 is never read. Is"),
    "padded": (
        [(PART, f"{PART})\n        yield from (range(13, 13) if own else [self.rank]")],
        "with 0 workers 3 samples, such as 0, are read more than once. Is a share padded, or have two workers",
    ),
    "rank 0 reads all": (
        [(PART, "own, 13 if self.rank == 0 else 0, workers")],
        "with 0 workers rank 0 reads 13 of the 13 samples: each is read once, but the shares are unequal",
    ),
    "worker 0 reads all of its rank": (
        [(PART, "self.rank, 0 if own else 13, self.world_size")],
        "with 2 workers rank 0 logged 1 of 2 batches, one for each worker that reads: split the share of the rank",
    ),
    "three and one": (
        [(f"yield from range({PART})", THREE_AND_ONE)],
        "with 2 workers each sample is read once, but one worker reads 3, another 1",
    ),
    "logged without the stream": (
        [("for step, batch in enumerate(DataLoader(stream, batch_size=5, num_workers=workers)):",
          "for step, batch in enumerate([list(range(dist.get_rank(), 13, 3))]):")],
        "with 2 workers rank 0 logged 1 of 2 batches",
    ),
    "another batch size": (
        [("batch_size=5", "batch_size=2")],
        "with 0 workers rank 0 logged 3 batches. The share of a worker is one: leave the loop and its batch_size=5",
    ),
    "a list returned": (
        [("yield from range(" + PART + ")", "return list(range(" + PART + "))")],
        "): TypeError: iter() returned non-iterator of type 'list'. Mend that first.",
    ),
    "other samples": (
        [("range(own", "(7 + i for i in range(own"), ("world_size)\n", "world_size))\n")],
        "none of the 13",
    ),
    "no such workers": ([("(0, 2, 3)", "(0, 2)")], "no samples were logged with 3 workers"),
}


@pytest.mark.parametrize("mistake", WRONG_STREAMS)
def test_each_wrong_stream_has_its_own_hint(mistake):
    edits, expected = WRONG_STREAMS[mistake]
    assert expected in hint("05.4", run_cell("stream_solution.py", *edits))


def test_the_starter_of_the_stream_and_its_solution():
    assert "each of the 3 ranks goes through all of the stream" in hint("05.4", run_cell("stream.py"))
    assert lab.check("05.4", run_cell("stream_solution.py")).done
    assert "Write --nproc 3" in hint("05.4", run_cell("stream_solution.py", nproc=2))


RIGHT_STREAMS = {
    "by rank first": [(PART, "self.rank * workers + own, 13, workers * self.world_size")],
    "picked": [
        (
            "yield from range(",
            "me, parts = range(13), workers * self.world_size\n        yield from (i for i in me if i ",
        ),
        (PART, "% parts == own * self.world_size + self.rank"),
    ],
}


@pytest.mark.parametrize("way", RIGHT_STREAMS)
def test_another_way_to_split_a_stream_is_right(way):
    assert lab.check("05.4", run_cell("stream_solution.py", *RIGHT_STREAMS[way])).done


def stream_records(own):
    """The records of a rank, of {workers: its samples}."""
    return [{"workers": workers, "step": 0, "samples": samples} for workers, samples in own.items()]


def test_a_sample_must_be_a_number():
    made = made_up_run([stream_records(dict.fromkeys((0, 2, 3), ["a"]))] * 3)
    assert "'a' was logged as a sample" in hint("05.4", made)


# ---- 05.5


@pytest.fixture(scope="module")
def target():
    return run_cell("one_draw.py")


SHARE = "drawn[dist.get_rank() :: dist.get_world_size()]"
WRONG_WEIGHTS = {  # mistake: (edits of the solution, the hint)
    "not shared out": ([(SHARE, "drawn")], "in epoch 0 the ranks read 24 samples, the target 12: each draws the same."),
    "own draws": (
        [("manual_seed(self.epoch)", "manual_seed(7 + self.epoch + dist.get_rank())")],
        "All ranks are to make the target's draw, whose seed is the epoch",
    ),
    "own draws of half": (
        [(SHARE, "drawn[:6]"), ("manual_seed(self.epoch)", "manual_seed(7 + dist.get_rank())")],
        "All ranks are to make the target's draw, whose seed is the epoch",
    ),
    "no epoch": ([("manual_seed(self.epoch)", "manual_seed(0)")], "epoch 1 reads what epoch 0 did"),
    "epoch never set": ([("        self.epoch = epoch\n", "        pass\n")], "epoch 1 reads what epoch 0 did"),
    "positions": ([(SHARE, f"range(self.draws){SHARE[5:]}")], "in epoch 0 sample 0 is read, whose weight is 0"),
    "blocks": (
        [(SHARE, "drawn[dist.get_rank() * 6 :][:6]")],
        "the right draw, but in step 0 of epoch 0 the ranks read",
    ),
    "another seed": (
        [("manual_seed(self.epoch)", "manual_seed(self.epoch + 1)")],
        "All ranks are to make the target's",
    ),
    "no length": ([("self.draws // dist.get_world_size()", "self.draws")], "len(sampler) is 12, not 6: see __len__."),
    "a length of five": ([("self.draws // dist.get_world_size()", "5")], "len(sampler) is 5, not 6: see __len__."),
    "a loader of one's own": ([("batch_size=4 // dist.get_world_size()", "batch_size=2, drop_last=False"),
                               ("steps=len(loader)", "steps=6")], "len(loader) is 6, not 3: see __len__."),
    "no length logged": ([("worker.log(length=len(sampler), steps=len(loader))", "")], "rank 0 logged no len(sampler)"),
    "one rank less": ([(SHARE, f"{SHARE}[dist.get_rank() :]")], "the ranks read 11 samples, the target 12"),
    "one too many for one": (
        [(SHARE, "drawn[:5] if dist.get_rank() else drawn[5:]")],
        "read 7 and 5 samples, not half",
    ),
    "nothing on one": (
        [(SHARE, "drawn[: 12 * dist.get_rank()]")],
        "rank 0 logged no samples: its sampler hands out nothing",
    ),
    "no step": ([("step=step, samples", "samples")], "a record has no epoch or no step"),
}


@pytest.mark.parametrize("mistake", WRONG_WEIGHTS)
def test_each_wrong_weighted_sampler_has_its_own_hint(mistake, target):
    edits, expected = WRONG_WEIGHTS[mistake]
    answer = run_cell("weighted_solution.py", *edits)
    assert expected in hint("05.5", {"target": target, "run": answer})


def test_the_starter_of_the_weighted_sampler_and_its_solution(target):
    starter = run_cell("weighted.py")
    assert "each draws 12 of its own" in hint("05.5", {"target": target, "run": starter})
    solution = run_cell("weighted_solution.py")
    assert lab.check("05.5", {"target": target, "run": solution}).done
    assert "Give both" in hint("05.5", solution) and "the answer is nothing. Give both" in hint("05.5", None)
    assert "on one process" in hint("05.5", {"target": solution, "run": solution})
    few = made_up_run([target.ranks[0].records[:-1]])
    assert "`target` has not the 3 steps of 3 epochs" in hint("05.5", {"target": few, "run": solution})
    assert "Write --nproc 2" in hint("05.5", {"target": target, "run": run_cell("weighted_solution.py", nproc=1)})


# ---- 05.6


@pytest.fixture(scope="module")
def stopped():
    return run_cell("stopped.py")


def rest(name="rest_solution.py", *edits, nproc=3, read="8"):
    """The run of a cell that goes on, with its argument."""
    script = cell(name)[0]
    for old, new in edits:
        assert old in script, old
        script = script.replace(old, new)
    return launch([], name, (read,), nproc, 120, 60, "none", None, None, None, check=False, cell=script)


MINE = "list(whole)[read + dist.get_rank() :: dist.get_world_size()]"
WRONG_RESTS = {  # mistake: (edits of the solution, the hint)
    "from the start": ([("read + ", "")], "all 8 samples that were read are read again"),
    "another epoch": ([("set_epoch(1)", "set_epoch(0)")], "Is it the order of epoch 1"),
    "not shared out": ([(MINE, "list(whole)[read:]")], "each of the three ranks reads all 7 that are left"),
    "too little skipped": ([("read + ", "read // 2 + ")], "4 samples, such as 2, are read again: to how many ranks"),
    "batches skipped": ([("read + ", "3 * 4 + ")], "4 samples, such as"),
    "the remainder dropped": ([(MINE, f"{MINE}[:2]")], "is never read. Does each rank take every third"),
    "padded": (
        [(MINE, "[list(whole)[read + i] for i in DistributedSampler(range(7), shuffle=False)]")],
        "2 samples, such as",
    ),
    "rank 0 alone": ([(MINE, "list(whole)[read:] if dist.get_rank() == 0 else []")], "the ranks read 7, 0, 0 samples"),
    "nothing": ([(MINE, "[]")], "no rank logged a sample. Is the rest empty? 7 of the 15 are left."),
    "positions": (
        [(MINE, "list(range(15 - read))[dist.get_rank() :: dist.get_world_size()]")],
        "the samples read are 0 to 6, as many as are left: are these *positions*",
    ),
    "one too little skipped": ([("read + ", "read - 1 + ")], " is read again: to how many ranks does `read` refer?"),
    "padded for two ranks": (
        [(MINE, "(list(whole) + list(whole)[:1])[read + dist.get_rank() :: dist.get_world_size()]")],
        "is read again: the first of the order, with which DistributedSampler pads the 15 to 16 for two ranks",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_RESTS)
def test_each_wrong_rest_has_its_own_hint(mistake, stopped):
    edits, expected = WRONG_RESTS[mistake]
    text = hint("05.6", {"stopped": stopped, "run": rest("rest_solution.py", *edits)})
    assert expected in text and ("by repeating" in text) == (mistake == "padded")


def test_the_starter_of_the_rest_and_its_solution(stopped):
    begins = "the three ranks begin at the start of the epoch"
    assert begins in hint("05.6", {"stopped": stopped, "run": rest("rest.py")})
    solution = rest()
    assert lab.check("05.6", {"stopped": stopped, "run": solution}).done
    assert "Give both" in hint("05.6", solution)
    assert "`stopped` is to be the run of stopped.py" in hint("05.6", {"stopped": solution, "run": solution})
    assert "Write --nproc 3" in hint("05.6", {"stopped": stopped, "run": rest(nproc=2)})


def test_the_order_made_by_hand_is_right(stopped):
    by_hand = ("list(whole)[", "torch.randperm(15, generator=torch.Generator().manual_seed(1)).tolist()[")
    run = rest("rest_solution.py", by_hand, ("import torch.distributed", "import torch\nimport torch.distributed"))
    assert lab.check("05.6", {"stopped": stopped, "run": run}).done


@pytest.mark.parametrize("name", ["05.4", "05.5", "05.6"])
def test_a_hang_and_a_failure_are_told_first(name, target, stopped):
    for answer, said in ((early_exit(), "the run hung"), (None, "Mend that first")):
        run = made_up_run([[], []], error=answer.error if answer else RuntimeError("rank 1 failed"))
        given = {"05.4": run, "05.5": {"target": target, "run": run}, "05.6": {"stopped": stopped, "run": run}}[name]
        assert said in hint(name, given)
