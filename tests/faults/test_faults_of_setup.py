"""The faults of the first notebooks: each fails as its name says, and its cure does not."""

import socket
import sys

import pytest
from faulty import STALL, apart, cured, equal, faulty, line_of, of_ranks, stood

import ddp_lab as lab
from ddp_lab import catalog, gpus


def test_exception_one_rank():
    with pytest.raises(lab.RankError, match="loss is nan in step 3") as error:
        faulty("exception_one_rank")
    assert error.value.rank == 1
    assert error.value.line == line_of("faults/exception_one_rank", "raise ValueError")
    assert [record["step"] for record in error.value.run.ranks[1].records] == [0, 1, 2]


def test_exception_one_rank_cured():
    for rank in cured("exception_one_rank").ranks:
        assert [record["step"] for record in rank.records] == list(range(6))
        assert ["loss" in record for record in rank.records] == [True, True, True, False, True, True]


def test_rank0_only_collective():
    with pytest.raises(lab.HangError) as hang:
        faulty("rank0_only_collective", stall=STALL)
    name = "faults/rank0_only_collective"
    assert hang.value.reason == "stall"
    assert stood(hang.value) == {
        0: (line_of(name, "dist.all_reduce"), "all_reduce"),
        1: (line_of(name, "dist.barrier"), "barrier"),
    }


def test_rank0_only_collective_cured():
    run = cured("rank0_only_collective", stall=STALL)
    assert [rank.records[0] for rank in run.ranks] == [{"right": 90 + rank, "seen": 100} for rank in (0, 1)]
    assert [rank.records[1:] for rank in run.ranks] == [[{"accuracy": (90 + 91) / 200}], []]


def test_early_exit_one_rank():
    with pytest.raises(lab.HangError) as hang:
        faulty("early_exit_one_rank", stall=STALL)
    name = "faults/early_exit_one_rank"
    where = stood(hang.value)
    assert where[0] == (line_of(name, "dist.barrier"), "barrier")
    assert where[1][0] == line_of(name, "loss.backward") and "backward" in where[1][1]
    last = [rank.records[-1]["step"] for rank in hang.value.run.ranks]
    assert last[1] == last[0] + 1


def test_early_exit_one_rank_cured():
    ranks = cured("early_exit_one_rank", stall=STALL).ranks
    assert ranks[0].records[-1]["step"] == ranks[1].records[-1]["step"] < 99  # together, and before the end


def test_killed_by_signal():
    with pytest.raises(lab.RankError, match="SIGKILL") as error:
        faulty("killed_by_signal")
    assert error.value.rank == 1
    assert error.value.run.ranks[1].exitcode == -9
    assert error.value.run.ranks[1].records[-1]["held"] > 20e6  # the record of the last moment survives


def test_killed_by_signal_cured():
    for rank in cured("killed_by_signal").ranks:
        assert [record["held"] for record in rank.records] == [4, 8, 12, 16, 20, 24]


def test_plain_python_start():
    with pytest.raises(lab.CommandError, match="environment variable RANK expected, but not set"):
        lab.command(sys.executable, "-m", catalog.module("faults/plain_python_start"), show="none")


def test_plain_python_start_cured():
    run = cured("plain_python_start")
    assert [rank.records for rank in run.ranks] == [[{"rank": rank, "world_size": 2}] for rank in (0, 1)]
    with pytest.raises(lab.CommandError, match="start this script with: torchrun"):
        lab.command(sys.executable, "-m", catalog.module("faults/plain_python_start_cured"), show="none")


def test_not_initialised():
    with pytest.raises(lab.RankError, match="Default process group has not been initialized") as error:
        faulty("not_initialised")
    assert error.value.line == line_of("faults/not_initialised", "model = DistributedDataParallel(")


def test_not_initialised_cured():
    (losses,) = of_ranks(cured("not_initialised"), "loss")
    assert equal(losses)


def test_initialised_twice():
    with pytest.raises(lab.RankError, match="trying to initialize the default process group twice") as error:
        faulty("initialised_twice")
    before_main = catalog.source("faults/initialised_twice").text.split("def main")[0].splitlines()
    assert "init_process_group" in before_main[error.value.line - 1]  # the second call, in what main calls


def test_initialised_twice_cured():
    run = cured("initialised_twice")
    (mine,), (totals,) = of_ranks(run, "mine"), of_ranks(run, "total")
    assert equal(totals) and totals[0] == pytest.approx(sum(mine))


def on_two_nodes(name):
    """{(node, rank): (index, devices)} that four ranks on two nodes have logged, and whether both nodes ended well."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    rest = ["--nproc-per-node", "2", "--master-port", port, "-m", catalog.module(f"faults/{name}")]
    nodes = [["torchrun", "--nnodes", "2", "--node-rank", node, *rest] for node in "01"]
    runs = lab.commands(nodes, show="none", check=False)
    records = [record for run in runs for record in run.ranks[0].records]
    chosen = {(record["node"], record["rank"]): (record["index"], record["devices"]) for record in records}
    return chosen, all(run.ok for run in runs)


def test_rank_as_device():
    chosen, ok = on_two_nodes("rank_as_device")
    assert chosen == {(0, 0): (0, 2), (0, 1): (1, 2), (1, 2): (2, 2), (1, 3): (3, 2)}  # 2 and 3 of two devices
    assert ok == (gpus.count() not in (2, 3))  # a CPU takes any index, and so do GPUs that are there


def test_rank_as_device_cured():
    chosen, ok = on_two_nodes("rank_as_device_cured")
    assert chosen == {(0, 0): (0, 2), (0, 1): (1, 2), (1, 2): (0, 2), (1, 3): (1, 2)}
    assert ok


def test_device_ids_on_cpu():
    with pytest.raises(lab.RankError, match=r"got device_ids \[[01]\], .* module parameters .*cpu"):
        faulty("device_ids_on_cpu")


def test_device_ids_on_cpu_cured():
    assert of_ranks(cured("device_ids_on_cpu"), "local_rank") == [(0, 1)]


def test_not_wrapped():
    weights = of_ranks(faulty("not_wrapped"), "weight")
    assert equal(weights[0]) and all(apart(step) for step in weights[1:])
    assert weights[-1] == pytest.approx((1, 2), abs=0.1)  # each has learned its own data


def test_not_wrapped_cured():
    weights = of_ranks(cured("not_wrapped"), "weight")
    assert all(equal(step) for step in weights)
    assert 1.2 < weights[-1][0] < 1.8  # all have learned the data of both


def samples(run):
    """What each rank has read, in its order."""
    return [[sample for record in rank.records for sample in record.get("samples", [])] for rank in run.ranks]


def test_no_sampler():
    run = faulty("no_sampler")
    assert [rank.records[-1] for rank in run.ranks] == [{"steps": 6, "total": 24, "distinct": 12}] * 2
    assert [sorted(read) for read in samples(run)] == [list(range(12))] * 2


def test_no_sampler_cured():
    run = cured("no_sampler")
    assert [rank.records[-1] for rank in run.ranks] == [{"steps": 3, "total": 12, "distinct": 12}] * 2
    first, second = samples(run)
    assert len(first) == len(second) and sorted(first + second) == list(range(12))


def test_module_called_directly():
    run = faulty("module_called_directly")
    assert of_ranks(run, "gradient") == [(1.5, 1.5), (1, 2), (1.5, 1.5)]
    assert [apart(step) for step in of_ranks(run, "weight")] == [False, True, True]  # and for ever


def test_module_called_directly_cured():
    run = cured("module_called_directly")
    assert of_ranks(run, "gradient") == [(1.5, 1.5)] * 3
    assert all(equal(step) for step in of_ranks(run, "weight"))


def test_parameter_added_after_wrap():
    run = faulty("parameter_added_after_wrap")
    assert all(apart(step) for step in of_ranks(run, "new"))
    assert all(equal(step) for step in of_ranks(run, "old"))


def test_parameter_added_after_wrap_cured():
    run = cured("parameter_added_after_wrap")
    assert len(of_ranks(run, "new")) == 5
    assert all(equal(step) for name in ("new", "old") for step in of_ranks(run, name))


LATE = "Expected to have finished reduction in the prior iteration before starting a new one"


def test_head_replaced_after_wrap():
    with pytest.raises(lab.RankError, match=LATE) as error:
        faulty("head_replaced_after_wrap")
    assert "did not receive grad for rank" in str(error.value) and ": 2 3\n" in str(error.value)  # the old head's
    assert error.value.line == line_of("faults/head_replaced_after_wrap", "loss = model(")
    for name in ("body", "head"):
        (first,) = of_ranks(error.value.run, name)  # one step passed in silence, and nothing was averaged in it
        assert apart(first)


def test_head_replaced_after_wrap_cured():
    run = cured("head_replaced_after_wrap")
    assert len(of_ranks(run, "head")) == 5
    assert all(equal(step) for name in ("body", "head") for step in of_ranks(run, name))


def test_head_replaced_find_unused():
    run = faulty("head_replaced_find_unused")  # no error, though the head is replaced in the same place
    assert len(of_ranks(run, "head")) == 5 and all(apart(step) for step in of_ranks(run, "head"))
    assert all(equal(step) for step in of_ranks(run, "body"))  # what the flag does cure


def test_head_replaced_find_unused_cured():
    run = cured("head_replaced_find_unused")
    assert len(of_ranks(run, "head")) == 5
    assert all(equal(step) for name in ("body", "head") for step in of_ranks(run, name))


def test_frozen_after_wrap():
    with pytest.raises(lab.RankError, match=LATE) as error:
        faulty("frozen_after_wrap")
    assert "did not receive grad for rank" in str(error.value) and ": 0 1\n" in str(error.value)  # the frozen ones
    assert error.value.line == line_of("faults/frozen_after_wrap", "loss = model(")
    (first,) = of_ranks(error.value.run, "head")  # one step passed in silence, and nothing was averaged in it
    assert apart(first)


def test_frozen_after_wrap_cured():
    heads = of_ranks(cured("frozen_after_wrap"), "head")
    assert len(heads) == 5 and all(equal(step) for step in heads)


def test_unfrozen_after_wrap():
    run = faulty("unfrozen_after_wrap")
    assert [apart(step) for step in of_ranks(run, "body")] == [False] * 3 + [True] * 3  # thawed in step 3
    assert all(equal(step) for step in of_ranks(run, "head"))


def test_unfrozen_after_wrap_cured():
    run = cured("unfrozen_after_wrap")
    bodies = of_ranks(run, "body")
    assert all(equal(step) for step in [*bodies, *of_ranks(run, "head")])
    assert bodies[0] == bodies[2] != bodies[3]  # it was frozen, and then trained


def test_cast_after_wrap():
    run = faulty("cast_after_wrap")
    assert run.ok and [apart(step) for step in of_ranks(run, "gradient")] == [True] * 5


def test_a_cast_makes_new_gradient_accumulators_of_the_same_parameters():
    import torch
    from torch.autograd.graph import get_gradient_edge

    layer = torch.nn.Linear(2, 2)
    parameters = list(layer.parameters())
    for changes in (True, False):  # the second cast has nothing left to change
        before = [get_gradient_edge(parameter).node for parameter in parameters]
        layer.double()
        after = [get_gradient_edge(parameter).node for parameter in layer.parameters()]
        assert [one is not other for one, other in zip(before, after, strict=True)] == [changes] * 2
        assert all(one is other for one, other in zip(parameters, layer.parameters(), strict=True))


def test_cast_after_wrap_cured():
    gradients = of_ranks(cured("cast_after_wrap"), "gradient")
    assert len(gradients) == 5 and all(equal(step) for step in gradients)


def test_weights_loaded_on_one_rank():
    run = faulty("weights_loaded_on_one_rank")
    assert all(equal(step) for step in of_ranks(run, "gradient"))
    distances = [one - other for one, other in of_ranks(run, "weight")]
    assert distances == pytest.approx([distances[0]] * 5, abs=1e-5) and distances[0] > 1


def test_weights_loaded_on_one_rank_cured():
    run = cured("weights_loaded_on_one_rank")
    weights = of_ranks(run, "weight")
    assert weights[0] == (5, 5) and all(equal(step) for step in [*weights, *of_ranks(run, "gradient")])


def test_optimizer_loaded_on_one_rank():
    run = faulty("optimizer_loaded_on_one_rank")
    assert all(equal(step) for step in of_ranks(run, "gradient"))
    distances = [other - one for one, other in of_ranks(run, "weight")]
    momentum = [0.1 * 2 * 0.9**step for step in range(5)]  # rank 0's alone: learning rate × what is left of its buffer
    assert distances == pytest.approx([sum(momentum[1 : step + 1]) for step in range(5)], abs=1e-5)


def test_optimizer_loaded_on_one_rank_cured():
    run = cured("optimizer_loaded_on_one_rank")
    weights, gradients = of_ranks(run, "weight"), of_ranks(run, "gradient")
    assert all(equal(step) for step in [*weights, *gradients])
    assert weights[1][0] - weights[0][0] == pytest.approx(-0.1 * (0.9 * 2 + gradients[0][0]), abs=1e-5)  # loaded on all


def test_module_prefix():
    with pytest.raises(lab.RankError, match='Missing key.*"weight", "bias"') as error:
        faulty("module_prefix")
    assert 'Unexpected key(s) in state_dict: "module.weight", "module.bias"' in str(error.value)
    assert error.value.run.ranks[0].records == [{"names": ["module.weight", "module.bias"]}]


def test_module_prefix_cured():
    for rank in cured("module_prefix").ranks:
        assert rank.records == [{"names": ["weight", "bias"]}, {"loaded": True}]


def test_module_prefix_not_strict():
    run = faulty("module_prefix_not_strict")
    assert run.ok
    for rank in run.ranks:
        keys = {"missing": ["weight", "bias"], "unexpected": ["module.weight", "module.bias"]}
        assert rank.records == [keys, {"loaded": False}]


def test_module_prefix_not_strict_cured():
    for rank in cured("module_prefix_not_strict").ranks:
        assert rank.records == [{"missing": [], "unexpected": []}, {"loaded": True}]


def test_model_differs():
    with pytest.raises(lab.RankError, match="appears not to match sizes of the same param in process 0") as error:
        faulty("model_differs")
    assert error.value.rank == 1
    assert of_ranks(error.value.run, "classes") == [(3, 2)]


def test_model_differs_cured():
    assert of_ranks(cured("model_differs"), "classes") == [(3, 3)]
