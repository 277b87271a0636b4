"""checks of notebook 05, first half: its own cells are run, as they stand and with mistakes in them."""

import pytest
from answering import Cells, hint, made_up_run

import ddp_lab as lab
from ddp_lab.checks.notebook05_samplers import CASES, share

CELLS = Cells("05_samplers.ipynb")
cell, run_cell = CELLS.script, CELLS.run


@pytest.mark.parametrize("name, changed", [("validate", 6), ("held_back", 2)])
def test_a_solution_is_its_starter_with_little_changed(name, changed):
    starter, solution = (set(cell(f"{which}.py")[0].splitlines()) for which in (name, f"{name}_solution"))
    missing = [line for line in starter - solution if "# your turn" not in line]
    assert len(missing) <= changed, missing


def test_the_shares_that_are_checked_are_the_samplers():
    from torch.utils.data import DistributedSampler

    for samples, world, drop_last in CASES:
        for rank in range(world):
            own = DistributedSampler(range(samples), world, rank, shuffle=False, drop_last=drop_last)
            assert share(samples, world, rank, drop_last) == list(own)


def padded_once(samples, world, rank, drop_last):
    """As share, but what fills the shares is taken from the front a single time."""
    everything = list(range(samples))
    equal = samples // world * world if drop_last else -(-samples // world) * world
    return (everything + everything[: max(equal - samples, 0)])[:equal][rank::world]


WRONG_SHARES = {  # mistake: (function, the hint)
    "starter": (lambda n, w, r, d: list(range(r, n, w)), "has 3 samples, the sampler's 4. All shares are equally long"),
    "not padded": (
        lambda n, w, r, d: share(n, w, r, d) if d or n > w else list(range(r, n, w)),
        "With fewer samples than ranks, too, no rank has an empty share",
    ),
    "padded once": (padded_once, "2 samples, rank 4 of 5, drop_last=False your share is [], the sampler's [0]. What"),
    "drop_last ignored": (lambda n, w, r, d: share(n, w, r, False), "With drop_last nothing is read twice"),
    "nothing dropped": (
        lambda n, w, r, d: list(range(r, n, w)) if d else share(n, w, r, d),
        "10 samples, rank 0 of 4, drop_last=True your share is [0, 4, 8], the sampler's [0, 4]. With drop_last",
    ),
    "blocks": (
        lambda n, w, r, d: list(range(r * (n // w), (r + 1) * (n // w))),
        "a block. The sampler deals out, as one deals cards",
    ),
    "one too many": (lambda n, w, r, d: [*share(n, w, r, d), 0], "your share is [0, 3, 6, 9, 0], the sampler's [0, 3"),
    "the lists of the notebook": (
        lambda n, w, r, d: {3: [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]], 4: [[0, 4], [1, 5], [2, 6], [3, 7]]}[w][r],
        "12 samples, rank 0 of 4",
    ),
    "an empty share": (lambda n, w, r, d: [], "your share is [], the sampler's [0, 3, 6, 9]"),
    "always cut": (lambda n, w, r, d: share(n, w, r, True), "Without drop_last nothing is left out: all shares are as"),
    "an error": (lambda n, w, r, d: 1 / 0, "your function raised ZeroDivisionError: division by zero, for 10 samples"),
    "nothing": (lambda n, w, r, d: None, "your function returns nothing, not a list"),
    "no function": ([0, 3, 6], "the answer is a list, not a function"),
}


@pytest.mark.parametrize("mistake", WRONG_SHARES)
def test_each_wrong_share_has_its_own_hint(mistake):
    function, expected = WRONG_SHARES[mistake]
    assert expected in hint("05.1", function)


def test_the_sampler_itself_may_be_asked():
    from torch.utils.data import DistributedSampler

    def asked(samples, world, rank, drop_last):
        return tuple(DistributedSampler(range(samples), world, rank, shuffle=False, drop_last=drop_last))

    assert lab.check("05.1", asked).done


MINE = "mine = range(rank, 10, world_size)\n"
SUMS = "sums += torch.tensor([right[batch].sum(), len(batch)])\n"
REDUCE = "dist.all_reduce(sums)\n"
DIVIDE = "accuracy = sums[0] / sums[1]\n"
LOG = "    worker.log(step=step, samples=batch)\n"
IMPORT = ("import DataLoader\n", "import DataLoader, DistributedSampler\n")
MEAN_OF_BATCHES = (SUMS, "sums += torch.tensor([right[batch].mean(), 1])\n")
AVERAGE = "dist.all_reduce(accuracy, dist.ReduceOp.AVG)\n"
WRONG_VALIDATIONS = {  # mistake: (edits of the solution, the hint)
    "padded": (
        [IMPORT, (MINE, "mine = DistributedSampler(dataset, shuffle=False)\n")],
        "12 samples read, samples 0 and 1 twice. Look at what fills the last places",
    ),
    "dropped": (
        [IMPORT, (MINE, "mine = DistributedSampler(dataset, shuffle=False, drop_last=True)\n")],
        "8 of 10 samples read, samples 8 and 9 never. drop_last leaves out",
    ),
    "not to the end": ([(MINE, "mine = range(rank, 8, world_size)\n")], "8 of 10 samples read, samples 8 and 9 never."),
    "padded, cut, exact": (
        [IMPORT, (MINE, "mine = DistributedSampler(dataset, shuffle=False)\n"), (DIVIDE, "accuracy = torch.tensor(0.7)\n")],  # noqa: E501
        "the accuracy is 0.7, but samples 0 and 1 are read twice: a stride needs no padding",
    ),
    "percent": ([(DIVIDE, "accuracy = 100 * sums[0] / sums[1]\n")], "in percent: the target is 0.7"),
    "a text": ([("worker.log(accuracy=accuracy)", 'worker.log(accuracy="0.7")')], "rank 0 logged '0.7' as accuracy, not a"),  # noqa: E501
    "reduced in the loop": (
        [(SUMS, SUMS + "    dist.all_reduce(sums)\n")],
        "A collective in a loop needs equally many rounds on all ranks",
    ),
    "a batch dropped": ([("sampler=mine", "sampler=mine, drop_last=True")], "samples 8 and 9 never"),
    "all of them": ([(MINE, "mine = range(10)\n")], "each rank counts all 10 samples: the work is done 4 times"),
    "rank 0 alone": (
        [(MINE, "mine = range(10) if rank == 0 else []\n")],
        "each sample counts once, but rank 1 has none and waits",
    ),
    "means of ranks": ([(REDUCE, ""), (DIVIDE, DIVIDE + AVERAGE)], "0.7083, not 0.7: a mean of the ranks' accuracies"),
    "means of batches": (
        [MEAN_OF_BATCHES, (REDUCE, ""), (DIVIDE, DIVIDE + AVERAGE)],
        "not 0.7: a mean of batches' accuracies",
    ),
    "not added up": ([(REDUCE, "dist.barrier()\n")], "an accuracy of its own. Add up hits and samples, both"),
    "to one rank": ([(REDUCE, "dist.reduce(sums, 0)\n")], "rank 0 has the accuracy over all samples, the others do"),
    "hits": ([(DIVIDE, "accuracy = sums[0]\n")], "these are the hits. Divide them by the samples counted"),
    "typed in": ([(REDUCE, "dist.barrier()\n"), (DIVIDE, "accuracy = 0.7\n")], "no rank asked the others"),
    "another number": ([(DIVIDE, "accuracy = sums[0] / 12\n")], "0.5833, not 0.7. Add up hits and samples"),
    "no log": ([(LOG, "    pass\n")], "no rank logged samples"),
    "no accuracy": ([("worker.log(accuracy=accuracy)\n", "")], "rank 0 logged no accuracy"),
}


@pytest.mark.parametrize("mistake", WRONG_VALIDATIONS)
def test_each_wrong_validation_has_its_own_hint(mistake):
    edits, expected = WRONG_VALIDATIONS[mistake]
    assert expected in hint("05.2", run_cell("validate_solution.py", *edits))


def test_the_starter_of_the_validation_and_another_number_of_ranks_are_told():
    assert "12 samples read, samples 0 and 1 twice" in hint("05.2", run_cell("validate.py"))
    assert "the run had 3 ranks. Write --nproc 4" in hint("05.2", run_cell("validate_solution.py", nproc=3))


def test_every_share_without_repeats_is_right():
    blocks = (MINE, "mine = torch.arange(10).tensor_split(world_size)[rank].tolist()\n")
    assert lab.check("05.2", run_cell("validate_solution.py", blocks)).done


def test_without_drop_last_in_the_script_it_is_not_named():
    edits = (MINE, "mine = range(rank, 8, world_size)\n")
    assert "drop_last" not in hint("05.2", run_cell("validate_solution.py", edits))


def test_an_accuracy_of_one_element_is_one():
    assert lab.check("05.2", run_cell("validate_solution.py", (DIVIDE, "accuracy = sums[:1] / sums[1:]\n"))).done


SPLIT = ", generator=one_seed"
SEED = "torch.manual_seed(rank)  # each rank draws random numbers of its own\n"
EPOCH = "    sampler.set_epoch(epoch)\n"
WRONG_DATA = {  # mistake: (edits of the solution, the hint)
    "another split on each rank": ([(SPLIT, "")], "are trained on and validated as well, such as sample"),
    "no epoch": ([(EPOCH, "")], "3 epochs have 1 order: who tells the sampler the epoch?"),
    "the epoch too late": ([(EPOCH, "    sampler.set_epoch(epoch > 1)\n")], "3 epochs have 2 orders"),
    "the rank as epoch": ([(EPOCH, "    sampler.set_epoch(epoch + rank)\n")], "in epoch 0 samples"),
    "one seed for all": ([("manual_seed(rank)", "manual_seed(0)")], "two ranks draw the same noise"),
    "not shuffled": (
        [("DistributedSampler(train)", "DistributedSampler(train, shuffle=False)")],
        "the epochs are not shuffled: shuffle=False",
    ),
    "at the end of an epoch": ([(EPOCH, ""), ("worker.log(epoch=epoch, validated=batch)\n",
                               "worker.log(epoch=epoch, validated=batch)\n    sampler.set_epoch(epoch)\n")],
                               "is set_epoch called before the epoch's loop"),
    "no sampler": ([("sampler=sampler", "shuffle=True")], "each rank reads all 16: who shares them out?"),
    "all 24": (
        [("DataLoader(train, batch_size=4", "DataLoader(range(24), batch_size=4"),
         ("DistributedSampler(train)", "DistributedSampler(range(24))")],
        "trains on what it validates itself, such as sample",
    ),
    "positions": ([("DataLoader(train, batch_size=4", "DataLoader(range(24), batch_size=4")],
                  "What does the loader read?"),
    "seeded in each epoch": ([(EPOCH, EPOCH + "    torch.manual_seed(rank)\n")], "draws the same noise again and again"),  # noqa: E501
    "seeded by rank and epoch": ([(EPOCH, EPOCH + "    torch.manual_seed(rank + epoch)\n")], "two ranks draw the same"),
    "a larger batch": ([("DataLoader(train, batch_size=4", "DataLoader(train, batch_size=8")], "an update has 16"),
    "padded": (
        [("mine = range(rank, len(validation), world_size)", "mine = range(5)")],
        "in epoch 0 10 samples are validated, 5 of them distinct",
    ),
    "two epochs": ([("range(3)", "range(2)")], "epoch 2 has no samples, or none validated"),
    "no noise": ([(", noise=noise", "")], "a rank logged no noise"),
}


@pytest.mark.parametrize("mistake", WRONG_DATA)
def test_each_fault_left_in_the_data_has_its_own_hint(mistake):
    edits, expected = WRONG_DATA[mistake]
    assert expected in hint("05.3", run_cell("held_back_solution.py", *edits))


def test_a_split_that_changes_with_the_epoch_is_told():
    split = "    train, validation = random_split(range(24), [16, 8], generator=one_seed)\n"
    again = "    loader = DataLoader(train, batch_size=4, sampler=sampler)\n"
    run = run_cell("held_back_solution.py", (EPOCH, EPOCH + split + again))
    assert "the split changes from epoch to epoch" in hint("05.3", run)


def test_the_starter_with_both_faults_is_told_of_the_split_first():
    assert "Who draws the split, and from which seed?" in hint("05.3", run_cell("held_back.py"))
    assert "the run had 1 rank" in hint("05.3", run_cell("held_back_solution.py", nproc=1))


ONE_SPLIT = "one_seed = torch.Generator().manual_seed(0)  # all ranks draw the same split\n"
RIGHT_SPLITS = {
    "seeded before, and again after": [(SEED, "torch.manual_seed(0)\n"), (SPLIT, ""), (ONE_SPLIT, ""),
                                       ("mine = ", f"{SEED}mine = ")],
    "noise of one element": [("torch.rand(())", "torch.rand(2)")],
    "before the rank's seed": [(SEED, ""), ("mine = ", f"{SEED}mine = ")],
}  # fmt: skip


@pytest.mark.parametrize("way", RIGHT_SPLITS)
def test_every_split_that_is_the_same_on_all_ranks_is_right(way):
    assert lab.check("05.3", run_cell("held_back_solution.py", *RIGHT_SPLITS[way])).done


def test_samples_that_are_no_numbers_are_told():
    run = made_up_run([[{"step": 0, "samples": ["a"]}]] * 4)
    assert "rank 0 logged ['a'] as samples, which are no sample numbers" in hint("05.2", run)
