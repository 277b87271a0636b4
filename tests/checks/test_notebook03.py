"""checks of notebook 03: its own cells are run, as they stand and with mistakes in them."""

import pytest
from answering import Cells, early_exit, hint, made_up_run

import ddp_lab as lab
from ddp_lab.launch.failures import HangError

CELLS = Cells("03_ddp_setup.ipynb")
cell, run_cell = CELLS.script, CELLS.run


@pytest.mark.parametrize("name, changed", [("by_hand", 0), ("ddp", 4), ("save", 0), ("go_on", 2)])
def test_a_solution_is_its_starter_with_little_changed(name, changed):
    """So a learner who opens it finds the script that they know: all lines of the starter but these few."""
    starter, solution = (set(cell(f"{which}.py")[0].splitlines()) for which in (name, f"{name}_solution"))
    missing = [line for line in starter - solution if "# your turn" not in line]
    assert len(missing) <= changed, missing


def test_the_exercise_to_ddp_starts_from_its_target():
    assert cell("ddp.py")[0] == cell("one_process.py")[0]


BROADCAST = "dist.broadcast(weight.detach(), src=0)\n"
REDUCE = "    dist.all_reduce(weight.grad)  # the sum, in place\n"
DIVIDE = "    weight.grad /= world_size  # the mean\n"
STEP = "    optimizer.step()\n"
AVERAGE_WEIGHTS = STEP + "    dist.all_reduce(weight.detach())\n    weight.detach().div_(world_size)\n"
WRONG_AVERAGES = {  # mistake: (edits of the solution, the hint)
    "no broadcast": ([(BROADCAST, "")], "the gradients are equal, the weights are not"),
    "no average": ([(REDUCE + DIVIDE, "")], "all begin with one weight and drift apart from step 0 on"),
    "sum": ([(DIVIDE, "")], "3 times what one process has: it is the sum"),
    "half": ([("/= world_size", "/= 2")], "1.5 times what one process has. Divide the sum by the number of ranks"),
    "after the step": ([(REDUCE + DIVIDE, ""), (STEP, STEP + REDUCE + DIVIDE)], "all_reduce comes after step()"),
    "after the log": ([(REDUCE + DIVIDE, ""), (STEP, REDUCE + DIVIDE + STEP)], "Average above the log"),
    "weights averaged": ([(REDUCE + DIVIDE, ""), (STEP, AVERAGE_WEIGHTS)], "it is they that were averaged"),
    "weights averaged alone": (
        [(BROADCAST, ""), (REDUCE + DIVIDE, ""), (STEP, AVERAGE_WEIGHTS)],
        "the weights are equal, the gradients are not. Average the gradients",
    ),
    "sent in every step": (
        [(REDUCE + DIVIDE, ""), (STEP, STEP + "    " + BROADCAST)],
        "it has learned from rank 0's data alone",
    ),
    "a copy reduced": ([("weight.grad)", "weight.grad.clone())")], "all_reduce was given `weight.grad.clone()`"),
    "a copy reduced, nothing sent": (
        [(BROADCAST, ""), ("weight.grad)", "weight.grad.clone())"), (DIVIDE, "")],
        "all_reduce was given `weight.grad.clone()`, and the gradients are each rank's own, as before",
    ),
    "the loss reduced": (
        [(REDUCE + DIVIDE, "    dist.all_reduce(loss.detach())\n")],
        "all_reduce was given `loss.detach()`",
    ),
    "reduced to one rank": (
        [("dist.all_reduce(weight.grad)", "dist.reduce(weight.grad, 0)")],
        "rank 0 alone has the gradients of all",
    ),
    "the mean logged and not used": (
        [
            (REDUCE + DIVIDE, "    mean = weight.grad.clone()\n    dist.all_reduce(mean)\n    mean /= world_size\n"),
            ("gradient=weight.grad.item()", "gradient=mean.item()"),
        ],
        "the weights are not, and their distance changes",
    ),
    "sum, and a third of the rate": (
        [(DIVIDE, ""), ("lr=0.25", "lr=0.25 / 3")],
        "3 times what one process has: it is the sum",
    ),
    "a third of the rate": ([("lr=0.25", "lr=0.25 / 3")], "the rate is 0.0833"),
    "momentum": ([("lr=0.25", "lr=0.25, momentum=0.9")], "not by one rate times the gradient"),
    "later steps not divided": ([(DIVIDE, "    if step == 0: weight.grad /= 3\n")], "step 0 is right, and later steps"),
    "None assigned": ([("    dist.all_reduce", "    weight.grad = dist.all_reduce")], "the run failed (rank"),
    "another rank's weight": ([("src=0", "src=1")], "the ranks agree, but began with"),
    "one step": ([("    dist.all_reduce", "    if step == 0: dist.all_reduce")], "apart from step 1 on"),
    "one seed": ([("torch.manual_seed(rank)", "torch.manual_seed(0)")], "two ranks have drawn the same weight"),
    "wrapped": (
        [
            ("import torch\n", "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"),
            ("weight = model.weight", "weight = model.weight\nmodel = DDP(model)"),
        ],
        "here it is to be done by hand",
    ),
    "fewer steps": ([("range(8)", "range(3)")], "rank 0 logged weight in 3 of the 8 steps"),
    "nothing drawn": ([("worker.log(drawn=weight.item())\n", "")], "did not log what it has drawn"),
    "a text": ([("weight=weight.item()", "weight=str(weight.item())")], "as weight, not a number"),
    "nan": ([("weight=weight.item()", "weight=float('nan')")], "weights are not"),
}


@pytest.mark.parametrize("mistake", WRONG_AVERAGES)
def test_each_wrong_average_has_its_own_hint(mistake):
    edits, expected = WRONG_AVERAGES[mistake]
    assert expected in hint("03.1", run_cell("by_hand_solution.py", *edits))


RIGHT_AVERAGES = {
    "AVG": (REDUCE + DIVIDE, "    dist.all_reduce(weight.grad, dist.ReduceOp.AVG)\n"),
    "gathered": (
        REDUCE + DIVIDE,
        "    all_of_them = [torch.empty_like(weight.grad) for _ in range(world_size)]\n"
        "    dist.all_gather(all_of_them, weight.grad)\n"
        "    weight.grad = torch.stack(all_of_them).mean(0)\n",
    ),
    "twice": (REDUCE + DIVIDE, 2 * (REDUCE + DIVIDE)),  # a mean of equal numbers is that number
}


@pytest.mark.parametrize("way", RIGHT_AVERAGES)
def test_every_way_to_the_mean_is_right(way):
    assert lab.check("03.1", run_cell("by_hand_solution.py", RIGHT_AVERAGES[way])).done


def test_the_starter_of_the_average_is_told_what_is_missing():
    assert "each rank trains alone" in hint("03.1", run_cell("by_hand.py"))
    assert "Write --nproc 3" in hint("03.1", run_cell("by_hand_solution.py", nproc=2))


def by_the_book(script, folder):
    """A run with the right numbers, computed without ranks, and this script."""
    drawn, weight = [0.5, 0.1, 0.2], 0.5
    records = []
    for step in range(8):
        records += [{"step": step, "gradient": 2 * (weight - 2)}]
        weight -= 0.5 * (weight - 2)
        records += [{"step": step, "weight": weight}]
    (folder / "cell.py").write_text(script)
    return made_up_run([[{"drawn": own}, *records] for own in drawn], folder)


def test_an_average_computed_without_the_other_ranks_is_not_done(tmp_path):
    assert "no rank asked the others" in hint("03.1", by_the_book("worker.log(weight=1.9)\n", tmp_path))
    assert lab.check("03.1", by_the_book("dist.all_gather(all, mine)\n", tmp_path)).done


def hung(*collectives):
    spots = [{"rank": rank, "collective": name} for rank, name in enumerate(collectives)]
    return made_up_run([[] for _ in spots], error=HangError("no sign of life", where=spots))


def test_a_broadcast_that_rank_0_alone_calls_is_told_as_one():
    """What a real run reports of `if rank == 0: dist.broadcast(...)`."""
    text = hint("03.1", hung("broadcast", "all_reduce", "all_reduce"))
    assert "broadcast is called by all ranks: src says who sends" in text
    assert "src says" not in hint("03.1", hung("all_reduce", "barrier", "barrier"))
    assert "src says" not in hint("03.1", hung("broadcast", "broadcast", None))


@pytest.fixture(scope="module")
def target():
    return run_cell("one_process.py")


WRAP = "DistributedDataParallel(models.mlp().double())"
SAMPLER = "sampler = DistributedSampler(dataset, shuffle=False)  # the twin does not shuffle either\n"
LOADER = "batch_size=4 // dist.get_world_size(), sampler=sampler"
BARE = "models.mlp().double()"
SEED = "dist.get_rank())  # as the wrap sends rank 0's weights, each rank may have its own seed"
OPTIMIZE = "    optimizer.step()\n"
SUM = "    for p in model.parameters():\n        dist.all_reduce(p.grad)\n"
BLOCKS = "sampler = range(dist.get_rank() * 8, dist.get_rank() * 8 + 8)\n"
CAST = "the model is cast or moved after the wrap, which does not follow it"
WRONG_CHANGES = {  # mistake: (edits of the solution, the hint)
    "no wrap": ([(WRAP, "models.mlp().double()")], "apart after step 0: nothing averages their gradients"),
    "called past the wrapper": ([("model(images)", "model.module(images)")], "does the loss come from the wrapper"),
    "cast after the wrap": ([(WRAP, "DistributedDataParallel(models.mlp()).double()")], CAST),
    "cast on a later line": (
        [(WRAP, "DistributedDataParallel(models.mlp())\nmodel = model.to(torch.float64)")],
        CAST,
    ),
    "the inner model cast after the wrap": (
        [(f"model = {WRAP}", "net = models.mlp()\nmodel = DistributedDataParallel(net).train()\nnet.double()")],
        CAST,
    ),
    "cast before the wrap, and called past it": (
        [(f"model = {WRAP}", "model = models.mlp()\nmodel.double()\nmodel = DistributedDataParallel(model.double())")]
        + [("model(images)", "model.module(images)")],
        "does the loss come from the wrapper",
    ),
    "moved to where it is, and called past the wrapper": (
        [(WRAP, WRAP + '.to("cpu")'), ("model(images)", "model.module(images)")],
        "does the loss come from the wrapper",
    ),
    "no sampler": ([(LOADER, "batch_size=4 // dist.get_world_size()")], "each rank reads all 16 samples. What shares"),
    "shuffled": ([(", shuffle=False", "")], "They are shuffled, as DistributedSampler does unless it is told not to"),
    "the whole batch size": (
        [("4 // dist.get_world_size()", "4")],
        "in step 0 the ranks read 8 samples together, the tar",
    ),
    "in blocks": (
        [(SAMPLER, BLOCKS)],
        "[0, 1, 8, 9], the target [0, 1, 2, 3]. In each step the ranks together must read what the twin reads in that",
    ),
    "float32": ([(".double()", "")], "close, not equal. Did .double() stay everywhere?"),
    "the loss a sum": (
        [("cross_entropy(model(images), labels)", "cross_entropy(model(images), labels, reduction='sum')")],
        "differ from the target from step 0 on. A sum where the target has a mean",
    ),
    "summed by hand": ([(WRAP, BARE), (SEED, "0)"), (OPTIMIZE, SUM + OPTIMIZE)], "A sum where the target has a mean"),
    "averaged by hand": (
        [(WRAP, BARE), (SEED, "0)"), (OPTIMIZE, SUM + "        p.grad /= 2\n" + OPTIMIZE)],
        "right, and averaged by hand. Here the wrap is to do it",
    ),
    "weights averaged": (
        [(WRAP, BARE), (SEED, "0)"), (OPTIMIZE, OPTIMIZE + SUM.replace("grad", "data") + "        p.data /= 2\n")],
        "right, and averaged by hand. Here the wrap is to do it",
    ),
    "averaged by hand, and nothing sent": (
        [(WRAP, BARE), (OPTIMIZE, SUM + "        p.grad /= 2\n" + OPTIMIZE)],
        "apart after step 0, and there is no wrap, though something is exchanged",
    ),
    "never cleared": ([("    optimizer.zero_grad()\n", "")], "as the target up to step 0, and not in step 1"),
    "one share for both": (
        [(SAMPLER, SAMPLER.replace("shuffle", "num_replicas=2, rank=0, shuffle"))],
        "8 samples are read more than once, such as sample 0",
    ),
    "in blocks, beside a sampler": (
        [(SAMPLER, SAMPLER + BLOCKS)],
        "[0, 1, 8, 9], the target [0, 1, 2, 3]. In each step the ranks together must read what the twin reads in that",
    ),
    "another rate": ([("lr=0.5", "lr=0.1")], "the ranks agree, and differ from the target from step 0 on"),
    "another seed": (
        [("dist.get_rank())  #", "dist.get_rank() + 1)  #")],
        "the ranks agree, and differ from the target from step 0",
    ),
    "no end": ([("dist.destroy_process_group()", "")], "One line is missing, the last: leave the group"),
    "nothing logged": ([("samples=samples, ", "")], "rank 0 logged no samples"),
    "no weights": ([(", weights=weights", "")], "logged weights in 0 of the 4 steps"),
    "the last step not logged": (
        [("    worker.log", "    if step < 3: worker.log")],
        "in step 3 the ranks read [], the tar",
    ),
    "an error": ([("loss.backward()", "raise ValueError('boom')")], "the run failed (rank"),
}


@pytest.mark.parametrize("mistake", WRONG_CHANGES)
def test_each_wrong_change_to_ddp_has_its_own_hint(mistake, target):
    edits, expected = WRONG_CHANGES[mistake]
    text = hint("03.2", {"target": target, "run": run_cell("ddp_solution.py", *edits)})
    assert expected in text
    assert ("shuffle" in text) == (mistake == "shuffled")


def test_the_starter_to_ddp_is_told_what_is_missing(target):
    starter = run_cell("ddp.py")
    text = hint("03.2", {"target": target, "run": starter})
    assert "each rank trained on all 16 samples, alone: no rank has joined a group" in text
    assert "Write --nproc 2" in hint("03.2", {"target": target, "run": run_cell("ddp.py", nproc=1)})
    assert "Give both" in hint("03.2", starter)
    assert "`target` is to be the run of one_process.py" in hint("03.2", {"target": starter, "run": starter})
    assert "`target` is to be the run of one_process.py" in hint("03.2", {"run": starter})
    assert "the answer is nothing, not a run" in hint("03.2", {"target": target, "run": None})


def test_a_wrapper_under_another_name_is_a_wrapper(target):
    alias = (
        ("import DistributedDataParallel", "import DistributedDataParallel as DDP"),
        (f"= {WRAP}", f"= DDP{WRAP[23:]}"),
    )
    assert lab.check("03.2", {"target": target, "run": run_cell("ddp_solution.py", *alias)}).done


def test_the_solution_to_ddp_is_for_two_ranks(target):
    assert lab.check("03.2", {"target": target, "run": run_cell("ddp_solution.py")}).done
    four = run_cell("ddp_solution.py", nproc=4)
    assert "the run had 4 ranks. Write --nproc 2" in hint("03.2", {"target": target, "run": four})


def test_the_targets_numbers_written_down_are_not_done(target, tmp_path):
    aim = target.ranks[0].records
    halves = [[record | {"samples": record["samples"][rank::2]} for record in aim] for rank in (0, 1)]
    (tmp_path / "cell.py").write_text("worker.log(weights=1)\n")
    run = made_up_run(halves, tmp_path)
    assert "nothing in the script averages over ranks" in hint("03.2", {"target": target, "run": run})


LOG_WEIGHTS = next(line for line in cell("save.py")[0].splitlines(True) if line.startswith("worker.log(weights="))
SAVE = 'if rank == 0:\n    worker.save("checkpoint", model.module.state_dict())\n'


def changed(expression):
    """The solution, with each of the saved tensors p, named n, changed."""
    return SAVE.replace(
        "model.module.state_dict()", f"{{n: {expression} for n, p in model.module.state_dict().items()}}"
    )


WRONG_FILES = {  # mistake: (what stands in the solution's place, the hint)
    "nothing": ("", "no rank has saved anything"),
    "of the wrapper": (SAVE.replace(".module", ""), 'the names begin with "module." (module.1.bias)'),
    "by all": ('worker.save("checkpoint", model.module.state_dict())\n', "ranks 0, 1 have saved"),
    "by rank 1": (SAVE.replace("== 0", "== 1"), "rank 1 has saved"),
    "another name": (SAVE.replace("checkpoint", "model"), "it was saved as model. Give it the name checkpoint."),
    "fresh weights": (SAVE.replace("model.module", "models.mlp()"), "1.weight is not the trained one"),
    "the model itself": (SAVE.replace(".state_dict()", ""), "the run failed (rank 0"),
    "the optimizer": (SAVE.replace("model.module", "optimizer"), "no dict of names and tensors"),
    "a list": (SAVE.replace("model.module.state_dict()", "[1, 2]"), "no dict of names and tensors"),
    "something in a dict": (
        SAVE.replace("model.module.state_dict()", '{"model": [1]}'),
        "no dict of names and tensors",
    ),
    "in another dict": (
        SAVE.replace("model.module.state_dict()", '{"epoch": 10, "model": model.module.state_dict()}'),
        "the state dict lies in another dict, as model",
    ),
    "a file of one's own": (
        SAVE.replace(
            'worker.save("checkpoint", model.module.state_dict())', "torch.save({}, __import__('io').BytesIO())"
        ),
        "A file of your own is not seen here",
    ),
    "a barrier for one": (SAVE + "    dist.barrier()\n", "rank 1 made fewer collectives than the others"),
    "half": (SAVE.replace("state_dict", "half().state_dict"), "is float16, in a bare mlp() float32"),
    "double": (SAVE.replace("state_dict", "double().state_dict"), "is float64, in a bare mlp() float32"),
    "twice as large": (changed("2 * p"), "1.weight is not the trained one"),
    "negated": (changed("-p"), "1.weight is not the trained one"),
    "one layer turned": (changed('p.T if n == "1.weight" else p'), "1.weight is not the trained one"),
    "one sign": (changed('-p if n == "3.bias" else p'), "3.bias is not the trained one"),
    "rounded": (changed("p.bfloat16()"), "1.weight is not the trained one: it differs by up to 0.00"),
    "a part": (SAVE.replace("module.state", "module[1].state"), "it lacks 1.weight, 1.bias, 3.weight, 3.bias"),
    "more": (
        SAVE.replace("model.module.state_dict()", 'model.module.state_dict() | {"epoch": torch.ones(1)}'),
        "it has epoch too",
    ),
    "turned": (
        changed("p.T"),
        "3.weight has the shape (64, 10), in a bare mlp() (10, 64)",
    ),
    "what the cure returns": (
        "if rank == 0:\n"
        "    from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present as cure\n"
        '    worker.save("checkpoint", cure(model.state_dict(), "module."))\n',
        "None was saved",
    ),
}


@pytest.mark.filterwarnings("ignore:checkpoint. bfloat16 is read as float32")
@pytest.mark.parametrize("mistake", WRONG_FILES)
def test_each_wrong_checkpoint_has_its_own_hint(mistake):
    code, expected = WRONG_FILES[mistake]
    assert expected in hint("03.3", run_cell("save_solution.py", (SAVE, code)))


def test_a_checkpoint_from_before_the_training_and_a_changed_training_are_told():
    early = run_cell("save_solution.py", (SAVE, ""), ("for step in range(10):", SAVE + "for step in range(10):"))
    assert "not the trained" in hint("03.3", early)
    bare = run_cell("save_solution.py", ("DistributedDataParallel(models.mlp())", "models.mlp()"), (".module", ""))
    assert "the ranks' models differ by now" in hint("03.3", bare)
    assert "did not log its weights" in hint("03.3", run_cell("save_solution.py", (LOG_WEIGHTS, "")))
    assert "the run had 1 rank" in hint("03.3", run_cell("save_solution.py", nproc=1))


def test_names_put_right_by_hand_and_a_starter_without_an_answer():
    by_hand = '{n.removeprefix("module."): p for n, p in model.state_dict().items()}'
    right = run_cell("save_solution.py", ("model.module.state_dict()", by_hand), nproc=3)
    assert lab.check("03.3", right).done
    assert "no rank has saved anything" in hint("03.3", run_cell("save.py"))


LOAD = "if rank == 0:\n    net.load_state_dict(saved)\n"
FREEZE = "body.requires_grad_(False)  # at first the head alone\n"
FIRST_WRAP = "model = DistributedDataParallel(net)  # sends what rank 0 has loaded\n"
THAW = "    if step == 3:  # and then both\n        body.requires_grad_(True)\n"
WRAP_AGAIN = "        model = DistributedDataParallel(net)  # knows the body's parameters, too\n"
SEND = OPTIMIZE + "    for p in net.parameters():\n        dist.broadcast(p.detach(), src=0)\n"
LOG = "    gradient = "
BODY_MEAN = "        dist.all_reduce(body.weight.grad)\n        body.weight.grad /= 2\n"
NAMED_MEAN = BODY_MEAN.replace("body.weight.grad", "grad")
WRONG_REPAIRS = {  # mistake: (edits of the solution, the hint)
    "loaded too late": ([(LOAD, ""), (FIRST_WRAP, FIRST_WRAP + LOAD)], "only rank 0 has the saved weights. When does"),
    "not wrapped again": ([(WRAP_AGAIN, "")], "equal up to step 3, and"),
    "neither": ([(LOAD, ""), (FIRST_WRAP, FIRST_WRAP + LOAD), (WRAP_AGAIN, "")], "only rank 0 has the saved weights"),
    "not loaded": ([(LOAD, "")], "do not begin with the saved weights"),
    "one seed": ([("torch.manual_seed(rank)", "torch.manual_seed(0)")], "each is to keep data of its own"),
    "sent, not averaged": ([(WRAP_AGAIN, ""), (OPTIMIZE, SEND)], "the gradients are not: that hides the fault"),
    "thawed at once": (
        [(THAW + WRAP_AGAIN, ""), ("requires_grad_(False)", "requires_grad_(True)")],
        "stay frozen until",
    ),
    "never thawed": ([(THAW + WRAP_AGAIN, "")], "step 3 leaves the body as it was. It is to be trained from step 3 on"),
    "thawed a step late": (
        [("if step == 3:", "if step == 4:")],
        "step 3 leaves the body as it was. It is to be trained from step 3 on",
    ),
    "trained late": (
        [("    optimizer.step()", "    if step >= 3: optimizer.step()")],
        "step 0 leaves the head as it was. It is to be trained from step 0 on",
    ),
    "the head frozen with the body": (
        [(WRAP_AGAIN, "        head.requires_grad_(False)\n" + WRAP_AGAIN)],
        "step 3 leaves the head as it was. It is to be trained from step 0 on",
    ),
    "frozen after the wrap": (
        [(FREEZE, ""), (FIRST_WRAP, FIRST_WRAP + FREEZE)],
        "has had no gradient for a parameter on its list. Which was frozen, and when?",
    ),
    "a wrapper round the wrapper": (
        [(WRAP_AGAIN, "        model = DistributedDataParallel(model)\n")],
        "puts a wrapper round a wrapper. Which module did the first wrapper get?",
    ),
    "averaged by hand": (
        [(WRAP_AGAIN, ""), (LOG, "    if step >= 3:\n" + BODY_MEAN + LOG)],
        "right, and averaged by hand. Here the wrap is to do it",
    ),
    "averaged by hand, under another name": (
        [(WRAP_AGAIN, ""), (LOG, "    if step >= 3:\n        grad = body.weight.grad\n" + NAMED_MEAN + LOG)],
        "right, and averaged by hand. Here the wrap is to do it",
    ),
    "fewer steps": ([("range(6)", "range(5)")], "logged body in 5 of the 6 steps"),
}


@pytest.mark.parametrize("mistake", WRONG_REPAIRS)
def test_each_wrong_repair_has_its_own_hint(mistake):
    edits, expected = WRONG_REPAIRS[mistake]
    assert expected in hint("03.4", run_cell("go_on_solution.py", *edits))


RIGHT_REPAIRS = {
    "the wrapper's module wrapped": [(WRAP_AGAIN, WRAP_AGAIN.replace("(net)", "(model.module)"))],
    "one name for all": [
        (FIRST_WRAP, "model = net\nmodel = DistributedDataParallel(model)\n"),
        (WRAP_AGAIN, "        model = model.module\n        model = DistributedDataParallel(model)\n"),
    ],
    "the losses compared": [
        (OPTIMIZE, "    total = loss.detach().clone()\n    dist.all_reduce(total)\n" + OPTIMIZE),
    ],
    "loaded by all": [(LOAD, "net.load_state_dict(saved)\n")],
    "loaded by all, after the wrap": [(LOAD, ""), (FIRST_WRAP, FIRST_WRAP + "net.load_state_dict(saved)\n")],
    "told of unused parameters": [
        (FREEZE, ""),
        (FIRST_WRAP, "model = DistributedDataParallel(net, find_unused_parameters=True)\nbody.requires_grad_(False)\n"),
        (WRAP_AGAIN, ""),
    ],
}


@pytest.mark.parametrize("repair", RIGHT_REPAIRS)
def test_every_repair_that_mends_the_numbers_is_right(repair):
    assert lab.check("03.4", run_cell("go_on_solution.py", *RIGHT_REPAIRS[repair])).done


def test_the_starter_of_the_repair_is_told_the_first_fault_and_then_the_second():
    assert "in step 0, before anything was trained" in hint("03.4", run_cell("go_on.py"))
    text = hint("03.4", run_cell("go_on.py", (LOAD, ""), ("model = Dist", LOAD + "model = Dist")))
    assert "apart in step 4, in the body. What was trained for the first time just before" in text
    assert "the run had 1 rank" in hint("03.4", run_cell("go_on.py", nproc=1))


@pytest.mark.parametrize("name", ["03.1", "03.3", "03.4"])
def test_a_hang_and_a_failure_are_told_first(name):
    assert "the run hung" in hint(name, made_up_run([[], []], error=early_exit().error))
    assert "Mend that first" in hint(name, made_up_run([[], []], error=RuntimeError("rank 1 failed")))
