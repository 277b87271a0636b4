"""checks of the first half of notebook 02: its own cells are run, as they stand and with mistakes in them."""

import pytest
from answering import Cells, hint, made_up_run

import ddp_lab as lab
from ddp_lab.launch.failures import HangError

CELLS = Cells("02_collectives_and_ddp_by_hand.ipynb")
cell, run_cell = CELLS.script, CELLS.run


@pytest.mark.parametrize("name, changed", [("sort_out", 8), ("meters", 2), ("pairs", 2)])
def test_a_solution_is_its_starter_with_little_changed(name, changed):
    starter, solution = (set(cell(f"{which}.py")[0].splitlines()) for which in (name, f"{name}_solution"))
    missing = [line for line in starter - solution if "# your turn" not in line]
    assert len(missing) <= changed, missing


GATHER = "dist.all_gather_single(table, mine)\n"
SCATTER = "part = torch.zeros(1)\ndist.scatter(part, list(plan.split(1)) if rank == 0 else None, src=0)\n"
CROSS = "dist.all_to_all_single(received, letters)\n"
ALL_LETTERS = "every = torch.zeros(16)\ndist.all_gather_single(every, letters)\n"
WRONG_WAYS = {  # mistake: (edits of the solution, the hint)
    "the plan is broadcast": (
        [(SCATTER, "dist.broadcast(plan, src=0)\npart = plan[rank : rank + 1]\n")],
        "144 bytes; 96 are enough. Too many by broadcast: 64 bytes in 4 calls, on all ranks. A broadcast",
    ),
    "the table is added up": (
        [(GATHER, "table[rank] = mine\ndist.all_reduce(table)\n")],
        "144 bytes; 96 are enough. Too many by all_reduce: 64 bytes in 4 calls, on all ranks. A sum moves",
    ),
    "objects": (
        [(GATHER, "every = [None] * 4\ndist.all_gather_object(every, mine)\ntable = torch.cat(every)\n")],
        "An object collective sends pickles",
    ),
    "nothing gathered": ([(GATHER, "")], "as table rank 0 has [0, 0, 0, 0], not [1, 10, 100, 1000]. Nothing has"),
    "nothing scattered": ([(SCATTER, "part = torch.zeros(1)\n")], "as plan rank 0 has [0], not [1]"),
    "own letters": ([(CROSS, "received = letters\n")], "the letters that it has written itself"),
    "all letters": ([(CROSS, ALL_LETTERS + "received = every\n")], "It has all letters of all ranks"),
    "another order": ([(CROSS, CROSS + "received = received.flip(0)\n")], "another order: that of the senders"),
    "not logged": (
        [('worker.log(collective="plan"', 'dict(collective="plan"')],
        'rank 0 has not logged collective="plan"',
    ),
    "texts": ([("after=table)", 'after=["a"])')], "not numbers"),
    "all letters, and own ones taken": (
        [(CROSS, ALL_LETTERS + "received = every.view(4, 4)[:, rank]\n")],
        "every rank receives all 16 letters, and needs 4",
    ),
    "letters computed, the plan broadcast": (
        [(CROSS, "received = (rank + 1.0) * 10 ** torch.arange(4)\n"),
         (SCATTER, "dist.broadcast(plan, src=0)\npart = plan[rank : rank + 1]\n")],
        "each rank has 3 letters to hand in, for the others",
    ),
    "computed": (
        [(CROSS, "received = (rank + 1.0) * 10 ** torch.arange(4)\n")],
        "each rank has 3 letters to hand in, for the others",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_WAYS)
def test_each_wrong_way_to_sort_out_has_its_own_hint(mistake):
    edits, expected = WRONG_WAYS[mistake]
    assert expected in hint("02.1", run_cell("sort_out_solution.py", *edits))


def test_the_starter_is_right_and_hands_in_four_times_too_much():
    expected = "the ranks hand in 384 bytes; 96 are enough. Too many by broadcast: 320 bytes in 20 calls"
    assert expected in hint("02.1", run_cell("sort_out.py"))


@pytest.mark.parametrize(
    "edit",
    [
        (GATHER, "rows = list(table.split(1))\ndist.all_gather(rows, mine)\n"),
    ],
)
def test_other_collectives_for_as_few_bytes_are_right(edit):
    assert lab.check("02.1", run_cell("sort_out_solution.py", edit)).done


def test_a_run_that_was_not_counted_is_told(monkeypatch):
    script, _ = cell("sort_out_solution.py")
    monkeypatch.setattr(
        CELLS, "cells", [type(CELLS.cells[0])({"source": f"%%torchrun --nproc 4 --name x.py \n{script}"})]
    )
    assert "Leave --count in the cell's first line" in hint("02.1", run_cell("x.py"))


ORDER = "for name in sorted(meters):  # one order on all ranks\n    meter = meters[name]\n"
COLUMN = "column = table[:, 0].contiguous()  # a copy without gaps\ndist.all_reduce(column)\ntable[:, 0] = column\n"
WRONG_REPAIRS = {
    "order left": ([(ORDER, "for name, meter in meters.items():\n")], "the loss of rank 0 is [2111], not 1111"),
    "column left": ([(COLUMN, "dist.all_reduce(table[:, 0])\n")], "The first two numbers in memory were added"),
    "not copied back": ([(COLUMN, "dist.all_reduce(table[:, 0].contiguous())\n")], "It has not changed"),
    "the whole table": ([(COLUMN, "dist.all_reduce(table)\n")], "The second column was added up too"),
    "no sum": ([("    dist.all_reduce(meter)\n", "")], "the error of rank 0 is 2, its own"),
    "means": ([("dist.all_reduce(meter)", "dist.all_reduce(meter, dist.ReduceOp.AVG)")], "a mean. Sums are asked for"),
    "not logged": ([("worker.log(collective=name,", "dict(collective=name,")], 'has not logged collective="loss"'),
}


@pytest.mark.parametrize("mistake", WRONG_REPAIRS)
def test_each_wrong_repair_has_its_own_hint(mistake):
    edits, expected = WRONG_REPAIRS[mistake]
    found = hint("02.2", run_cell("meters_solution.py", *edits))
    assert expected in found or (mistake == "no sum" and "the loss of rank 0 is 1, its own" in found)


def test_the_starter_of_the_repair_is_told_the_first_of_its_faults():
    assert "In which order does each rank go through its meters?" in hint("02.2", run_cell("meters.py"))


def test_numbers_without_a_collective_are_no_repair(tmp_path):
    (tmp_path / "cell.py").write_text("worker.log(after=1111)\n")
    records = [
        [
            {"collective": "loss", "after": [1111.0]},
            {"collective": "error", "after": [2222.0]},
            {"collective": "first column", "after": [1111.0, 2.0 * 10**rank, 3333.0, 4.0 * 10**rank]},
        ]
        for rank in range(4)
    ]
    assert "no rank asked the others" in hint("02.2", made_up_run(records, tmp_path))


GROUPS = "pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # all ranks make both\npair = pairs[rank // 2]\n"
TOTAL, FIRST = "dist.all_reduce(total, group=pair)\n", "dist.broadcast(first, group=pair, group_src=0)\n"
LOCAL = "pair = dist.new_group([rank - rank % 2, rank - rank % 2 + 1], use_local_synchronization=True)\n"
WRONG_PAIRS = {
    "the sum of all": ([(TOTAL, "dist.all_reduce(total)\n")], "All four ranks were added"),
    "from rank 0 to all": ([(FIRST, "dist.broadcast(first, src=0)\n")], "Rank 0 has sent to all"),
    "a global root": ([("group_src=0", "src=0")], "names a rank that is not in this pair"),
    "the second sends": ([("group_src=0", "group_src=1")], "That is the second of the pair"),
    "the other pair's group": ([("pairs[rank // 2]", "pairs[1 - rank // 2]")], "Nothing was added to its own"),
    "nothing sent": ([(FIRST, "")], "It has its own number"),
}


@pytest.mark.parametrize("mistake", WRONG_PAIRS)
def test_each_wrong_pair_has_its_own_hint(mistake):
    edits, expected = WRONG_PAIRS[mistake]
    if mistake == "the other pair's group":
        edits = [*edits, (FIRST, "")]
    assert expected in hint("02.3", run_cell("pairs_solution.py", *edits))


def test_the_starter_of_the_pairs_is_told_that_it_adds_all():
    assert "the total of rank 0 is [1111], not 11. All four ranks were added" in hint("02.3", run_cell("pairs.py"))


@pytest.mark.parametrize(
    "edit",
    [
        (GROUPS, LOCAL),
        (GROUPS, "pair, _ = dist.new_subgroups(2)\n"),
        (FIRST, "dist.broadcast(first, src=rank - rank % 2, group=pair)\n"),
    ],
)
def test_other_ways_to_the_pairs_are_right(edit):
    assert lab.check("02.3", run_cell("pairs_solution.py", edit)).done


MADE_ALONE = "pair = dist.new_group([0, 1] if rank < 2 else [2, 3])\n"  # ends by chance: tested on what it may end in


def pairs(totals, firsts, folder, script=MADE_ALONE + TOTAL, error=None):
    (folder / "cell.py").write_text(script)
    sides = zip(totals, firsts, strict=True)
    records = [[{"collective": "total", "after": [t]}, {"collective": "first", "after": [f]}] for t, f in sides]
    return made_up_run(records, folder, error=error)


def test_pairs_that_each_rank_has_made_alone_are_told_by_their_partners_or_their_hang(tmp_path):
    expected = "Every rank calls new_group for every group, in the same order"
    met = hint("02.3", pairs([1001.0, 110.0, 110.0, 1001.0], [1.0, 100.0, 100.0, 1.0], tmp_path))
    assert "It was added to a rank of the other pair" in met and expected in met
    hung = HangError("no sign of life", where=[{"rank": 0, "collective": "new_group"}])
    assert "Has every rank made both groups, in the same order?" in hint("02.3", pairs([], [], tmp_path, error=hung))


def test_pairs_without_groups_are_not_done(tmp_path):
    numbers = [11.0, 11.0, 1100.0, 1100.0], [1.0, 1.0, 100.0, 100.0]
    assert "there are no groups of two" in hint("02.3", pairs(*numbers, tmp_path, script="dist.all_gather(a, b)\n"))
    alone = pairs(*numbers, tmp_path, script="dist.new_group([0, 1])\n")
    assert "no rank asked the others" in hint("02.3", alone)


@pytest.mark.parametrize("name", ["02.1", "02.2", "02.3"])
@pytest.mark.parametrize("answer", [None, 11, "text", [], {}])
def test_what_is_no_run_is_told(name, answer):
    assert f'lab.check("{name}", answer)' in hint(name, answer)


@pytest.mark.parametrize("name, script", [("02.1", "sort_out"), ("02.2", "meters"), ("02.3", "pairs")])
def test_fewer_ranks_are_told(name, script):
    ranks = made_up_run([[], []])
    assert "Write --nproc 4" in hint(name, ranks) and cell(f"{script}.py")[1] == 4
