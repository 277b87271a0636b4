"""checks of notebook 04: its own cells are run, as they stand and with mistakes in them."""

import socket
from types import SimpleNamespace

import pytest
from answering import Cells, hint, made_up_run

import ddp_lab as lab
from ddp_lab.checks.notebook04 import MASKS, own_gpus
from ddp_lab.launch.failures import HangError, RankError

CELLS = Cells("04_devices_and_launching.ipynb")


def solution_of(text):
    """The source of the one solution cell with this text in it."""
    solutions = [cell.source for cell in CELLS.cells if "solution" in cell.metadata.get("tags", [])]
    (source,) = [source for source in solutions if text in source]
    return source


# 04.1


def run_masks(source):
    names = {"lab": lab}
    exec(source, names)
    return names


def test_the_solution_of_the_masks_is_right_and_the_starter_is_told_what_is_open():
    solution = run_masks(solution_of('"04.1"'))["solution"]
    assert list(solution) == list(MASKS)
    (starter,) = [cell.source for cell in CELLS.cells if 'lab.check("04.1", answer)' in cell.source]
    assert "the mask '2,0,3' is still open" in hint("04.1", run_masks(starter)["answer"])


def with_mask(mask, given):
    return {each: own_gpus(each) for each in MASKS} | {mask: given}


@pytest.mark.parametrize(
    "mask, given, expected",
    [
        ("2,0,3", [0, 2, 3], "the order is the mask's"),
        ("2,0,3", [0, 1, 2], "the numbers by which the ranks see them"),
        ("2,0,3", [3, 0, 2], "Go through its entries from the left"),
        ("2,0,3", [2, 0, 3, 1], "4 GPUs, and the mask has 3 entries"),
        ("2,0,3", "2,0,3", "Give a list"),
        ("2,0,3", ["2", "0", "3"], "numbers are asked for"),
        ("3,-1,0", [3, 0], "an entry that names no GPU ends the list"),
        ("3,-1,0", [0], "the numbers by which the ranks see them"),
        ("0,4,1", [0, 1], "an entry that names no GPU ends the list"),
        ("0,4,1", [0, None, None], "leave out the ranks that get none"),
        ("0,4,1", [], "Go through its entries"),
        ("1,3,1", [1, 3], "it names a GPU twice"),
        ("1,3,1", [1, 3, 1], "it names a GPU twice"),
        ("-1,2", [2], "an entry that names no GPU ends the list"),
        ("-1,2", None, "the mask '-1,2' is still open"),
    ],
)
def test_each_wrong_reading_of_a_mask_has_its_own_hint(mask, given, expected):
    found = hint("04.1", with_mask(mask, given))
    assert expected in found and repr(mask) in found


@pytest.mark.parametrize("answer", [None, [3, 1], "3,1"])
def test_an_answer_that_is_no_dict_is_told_so(answer):
    assert "for each mask the list" in hint("04.1", answer)


# 04.2


def job(records, stderr="", error=None, command="torchrun"):
    """What lab.commands gives for one command."""
    rank = SimpleNamespace(rank=0, records=list(records), stderr=stderr)
    return SimpleNamespace(ranks=[rank], ok=error is None, error=error, frame=None, command=command)


def node(*ranks, size=4):
    return job([{"RANK": str(rank), "WORLD_SIZE": str(size)} for rank in ranks])


def test_two_nodes_of_two_ranks_are_right_in_any_order():
    assert lab.check("04.2", [node(0, 1), node(2, 3)]).done
    assert lab.check("04.2", (node(3, 2), node(1, 0))).done
    warned = node(0, 1)
    warned.ranks[0].stderr = "[c10d] recvValueWithTimeout failed on SocketImpl: Failed to recv, got 0 bytes"
    assert lab.check("04.2", [warned, node(2, 3)]).done


FAILED = RankError("torchrun ended with exit code 1. The end of its stderr:")
HUNG = HangError("no sign of life", reason="timeout")
WRONG_NODES = {
    "two jobs": ([node(0, 1, size=2), node(0, 1, size=2)], "2 jobs of 2 ranks, each alone"),
    "one job of four and nothing": ([node(0, 1, 2, 3), job([])], "command 1 has left no record of a rank"),
    "two nodes of one": ([node(0, size=2), node(1, size=2)], "the nodes have 1 and 1 ranks"),
    "two jobs of four": ([node(0, 1, 2, 3), node(0, 1, 2, 3)], "the nodes have 4 and 4 ranks"),
    "one rank on the second": ([node(0, 1, size=3), node(2, size=3)], "the nodes have 2 and 1 ranks"),
    "two of three nodes": ([node(0, 1, size=6), node(2, 3, size=6)], "the world size is 6. It is to be 4"),
    "not one job": ([node(0, 1), node(0, 1)], "not the four of one job"),
    "both are node 0": ([job([], "... EADDRINUSE ...", FAILED), job([], "", HUNG)], "its own --node-rank"),
    "they have not met": ([job([], "", HUNG), job([], "", HUNG)], "one waited in vain"),
    "a time-out": ([job([], "RendezvousTimeoutError: timed out", FAILED), node(0)], "one waited in vain"),
    "an unknown option": ([node(0, 1), job([], "unrecognized arguments: --n", FAILED)], "command 1 was not understood"),
    "another failure": ([node(0, 1), job([], "", FAILED)], "the run failed"),
    "one command": ([node(0, 1)], "1 commands were run"),
    "one run": (node(0, 1), "Two nodes are two commands"),
    "nothing": (None, "the answer is nothing"),
    "texts": (["torchrun", "torchrun"], "the answer is a list"),
}


@pytest.mark.parametrize("mistake", WRONG_NODES)
def test_each_wrong_pair_of_nodes_has_its_own_hint(mistake):
    answer, expected = WRONG_NODES[mistake]
    assert expected in hint("04.2", answer)


def nodes(*edits):
    """What the commands of the solution give with texts in them replaced: pairs (old, new)."""
    source = solution_of('"04.2"')
    checked = 'assert lab.check("04.2", solution).done', ""
    for old, new in [checked, ("timeout=40", "timeout=20, check=False"), *edits]:
        assert old in source, old
        source = source.replace(old, new)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = str(probe.getsockname()[1])
    names = {"lab": lab, "free_port": lambda: free}
    exec(source, names)
    return names["solution"]


@pytest.mark.slow
def test_two_nodes_that_are_both_node_0_really_meet_at_one_port_and_clash():
    answer = nodes(('"--node-rank", "1"', '"--node-rank", "0"'))
    assert "give each its own --node-rank" in hint("04.2", answer)


# 04.3


def launched_again(run):
    command = ["python", "-m", "torch.distributed.launch", "--nproc-per-node", "2", str(run.dir / run.name)]
    return lab.command(*command, show="none", check=False)


MARKED = 'parser.add_argument("--local_rank", type=int, default=0)  # your turn'
HYPHEN = 'parser.add_argument("--local-rank", type=int, default=int(os.environ["LOCAL_RANK"]))'


@pytest.fixture(scope="module")
def right():
    run = CELLS.run("old_solution.py")
    return {"torchrun": run, "launch": launched_again(run)}


def test_the_solution_changes_the_marked_line_alone_and_is_right(right):
    starter, solution = (CELLS.script(name)[0].splitlines() for name in ("old.py", "old_solution.py"))
    assert set(starter) - set(solution) == {MARKED}
    assert lab.check("04.3", right).done


def test_the_starter_is_told_that_nothing_gives_the_argument(right):
    assert "both ranks say 0: nothing gives the argument" in hint("04.3", right | {"torchrun": CELLS.run("old.py")})


def test_a_script_that_has_lost_the_argument_is_told_what_the_old_launcher_says():
    run = CELLS.run("old.py", (MARKED, ""), ("args.local_rank", 'int(os.environ["LOCAL_RANK"])'))
    found = hint("04.3", {"torchrun": run, "launch": launched_again(run)})
    assert "The old launcher is not: unrecognized arguments: --local-rank=" in found


def old_and_new(new, records, stderr="", error=None):
    return {"torchrun": new, "launch": job(records, stderr, error, f"python -m ... {new.dir / new.name}")}


BOTH = [{"local_rank": 1}, {"local_rank": 0}]


def test_every_way_to_the_local_rank_is_right():
    assert lab.check("04.3", old_and_new(CELLS.run("old.py", (MARKED, HYPHEN)), BOTH)).done
    known = (MARKED, 'parser.add_argument("--x")'), ("parser.parse_args()", "parser.parse_known_args()")
    run = CELLS.run("old.py", *known, ("local_rank=args.local_rank", 'local_rank=int(os.environ["LOCAL_RANK"])'))
    assert lab.check("04.3", old_and_new(run, BOTH)).done


def test_a_required_argument_is_told_that_torchrun_gives_none(right):
    run = CELLS.run("old.py", ("default=0", "required=True"))
    assert "none may be required" in hint("04.3", right | {"torchrun": run})


def test_it_is_told_too_where_the_first_rank_was_stopped_before_it_could_say_so(right):
    run = made_up_run([[], []], error=RuntimeError("rank 1 failed"))
    for rank, said in zip(run.ranks, ("", "error: the following arguments are required: --local-rank"), strict=True):
        rank.stderr = said
    assert "none may be required" in hint("04.3", right | {"torchrun": run})


def test_a_local_rank_that_is_none_or_a_text_is_told(right):
    text = "type=int, default=0", 'default=os.environ["LOCAL_RANK"]'
    for edit, expected in ((", default=0", ""), "logged None"), (text, "logged '0' and '1', texts"):
        assert expected in hint("04.3", right | {"torchrun": CELLS.run("old.py", edit)})


def test_the_rank_for_the_local_rank_is_told_where_it_differs():
    run = CELLS.run("old.py", (MARKED, HYPHEN.replace("LOCAL_RANK", "RANK")))
    assert "On a second node RANK is 2 and 3" in hint("04.3", old_and_new(run, BOTH))


def test_the_old_launchers_run_is_looked_at_too(right):
    new = right["torchrun"]
    assert "They are 0 and 1" in hint("04.3", old_and_new(new, [{"local_rank": 0}] * 2))
    assert "They are 0 and 1" in hint("04.3", old_and_new(new, [{"local_rank": 0}]))
    assert "the run failed" in hint("04.3", old_and_new(new, [], "Traceback", FAILED))
    assert "the second run is not of this script" in hint("04.3", right | {"launch": job(BOTH, command="python x.py")})


@pytest.mark.parametrize(
    "answer, expected",
    [(None, "the answer is nothing"), ({}, "a run is missing"), (dict.fromkeys(["torchrun", "launch"]), "is missing")],
)
def test_an_answer_without_its_two_runs_is_told_so(answer, expected):
    assert expected in hint("04.3", answer)


def test_one_run_alone_is_told_that_two_are_asked_for(right):
    assert "Give both" in hint("04.3", right["torchrun"])
