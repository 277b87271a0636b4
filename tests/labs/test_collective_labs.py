"""The labs of collectives: each collective does what its picture shows, and what the checks of torch notice."""

import pytest

import ddp_lab as lab


@pytest.fixture(scope="module")
def four():
    return lab.torchrun("collectives", nproc=4, show="none", count=True)


def sides(run, name):
    """([what each rank had before a collective], [what it has after it])."""
    (rows,) = zip(*[[r for r in rank.records if r.get("collective") == name] for rank in run.ranks], strict=True)
    return [row["before"] for row in rows], [row["after"] for row in rows]


ROWS = [[number * 10**rank for number in (1, 2, 3, 4)] for rank in range(4)]
ONES = [[10**rank] for rank in range(4)]
SUMS = [1111, 2222, 3333, 4444]
TEXTS = [["1"], ["10"], ["100"], ["1000"]]
EXPECTED = {  # collective: before, after; a list for each rank
    "broadcast": (ROWS, [ROWS[0]] * 4),
    "scatter": ([ROWS[0], [], [], []], [[1], [2], [3], [4]]),
    "gather": (ONES, [[1, 10, 100, 1000], [], [], []]),
    "all_reduce": (ROWS, [SUMS] * 4),
    "all_gather": (ONES, [[1, 10, 100, 1000]] * 4),
    "reduce_scatter": (ROWS, [[number] for number in SUMS]),
    "all_to_all": (ROWS, [list(column) for column in zip(*ROWS, strict=True)]),
    "send, recv": (ONES, [[1], [1], [100], [100]]),
    "broadcast_object_list": (TEXTS, [["1"]] * 4),
    "scatter_object_list": ([["1", "2", "3", "4"], [], [], []], [["1"], ["2"], ["3"], ["4"]]),
    "gather_object": (TEXTS, [["1", "10", "100", "1000"], [], [], []]),
    "all_gather_object": (TEXTS, [["1", "10", "100", "1000"]] * 4),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_collective_moves_what_it_says(four, name):
    assert sides(four, name) == EXPECTED[name]


def test_reduce_gives_one_rank_the_sum(four):
    before, after = sides(four, "reduce")
    assert before == ROWS and after[0] == SUMS


def test_every_collective_of_the_lab_is_tested(four):
    logged = {record["collective"] for record in four.ranks[0].records if "collective" in record}
    assert logged == {*EXPECTED, "reduce"}


def test_no_rank_leaves_the_barrier_before_the_last_has_come(four):
    last = [rank.records[-1] for rank in four.ranks]
    assert min(times["left"] for times in last) >= max(times["came"] for times in last)
    assert all(one["came"] < other["came"] for one, other in zip(last, last[1:], strict=False))


def test_the_lab_runs_on_two_ranks_and_by_itself():
    for nproc in (1, 2):
        run = lab.torchrun("collectives", nproc=nproc, show="none")
        assert [own[0] for own in sides(run, "all_reduce")[1]] == [sum(10**rank for rank in range(nproc))] * nproc


SILENT = {"a view with gaps", "another op", "another tensor of that shape"}  # at any level
CAUGHT = {"another dtype", "another shape", "another length"}  # silent without checks
LOUD = {"another collective", "another length to add"}  # tried with checks alone


def test_the_level_detail_catches_what_differs_in_kind_shape_or_dtype_and_nothing_else():
    run = lab.torchrun("mismatches", show="none")
    for rank in run.ranks:
        errors = {(record["level"], record["mismatch"]): record["error"] for record in rank.records}
        off, detail = (
            {name: e for (level, name), e in errors.items() if level == which} for which in ("OFF", "DETAIL")
        )
        assert {name for name, error in off.items() if error is None} == SILENT | CAUGHT
        assert {name for name, error in detail.items() if error is None} == SILENT
        found = {name for name, error in detail.items() if error and "Detected mismatch between collectives" in error}
        assert found == CAUGHT | LOUD
        for level in (off, detail):  # both wait for the group's limit, checks or no checks
            assert "Timed out" in level["another root"] or "Connection closed by peer" in level["another root"]
