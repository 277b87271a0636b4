"""The faults of nn.DataParallel, on virtual devices where there are no others, and of what is left of it under DDP."""

import pytest
from faulty import apart, cured, equal, faulty, line_of, of_ranks

import ddp_lab as lab


def alone(name, **options):
    """What the one process of a fault has logged."""
    return records(faulty(name, nproc=1, **options))


def records(run):
    (rank,) = run.ranks
    return rank.records


def broken(name, text):
    """The RankError of a fault that ends in one with this text."""
    with pytest.raises(lab.RankError, match=text) as error:
        faulty(name, nproc=1)
    return error.value


def test_dp_state_lost():
    found = alone("dp_state_lost")
    assert [record["given"] for record in found] == [7, 14, 21, 28]
    assert {record["counted"] for record in found} == {0}


def test_dp_state_lost_cured():
    found = records(cured("dp_state_lost", nproc=1))
    assert [record["counted"] for record in found] == [record["given"] for record in found] == [7, 14, 21, 28]


def test_dp_batchnorm_first_share():
    (found,) = alone("dp_batchnorm_first_share")
    assert found["running"] == pytest.approx(found["shares"][0], abs=0.01) and found["batches"] == 50
    assert found["batch"] == 11 and found["shares"] == [1, 11, 21]


def test_dp_batchnorm_first_share_cured():
    (found,) = records(cured("dp_batchnorm_first_share", nproc=1))
    assert found["running"] == found["batch"] == 11 and found["batches"] == 1


def test_dp_small_last_batch():
    error = broken("dp_small_last_batch", "Caught ValueError in replica 2 on device 2")
    assert "Expected more than 1 value per channel when training" in str(error)
    assert records(error.run)[-1] == {"step": 2, "shares": [2, 2, 1]}  # of four devices, three


def test_dp_small_last_batch_cured():
    found = records(cured("dp_small_last_batch", nproc=1))
    assert [record["shares"] for record in found if "shares" in record] == 2 * [[2, 2, 2, 2]]
    assert len([record for record in found if "loss" in record]) == 2


def test_dp_scalar_outputs():
    error = broken("dp_scalar_outputs", "grad can be implicitly created only for scalar outputs")
    assert error.line == line_of("faults/dp_scalar_outputs", "loss.backward()")
    assert records(error.run) == [{"shape": [3]}]
    assert "all input tensors were scalars; will instead unsqueeze" in error.run.ranks[0].stderr


def test_dp_scalar_outputs_cured():
    shape, gradient = records(cured("dp_scalar_outputs", nproc=1))
    assert shape == {"shape": [3]} and gradient["difference"] < 1e-12


def test_dp_attribute_behind_wrapper():
    error = broken("dp_attribute_behind_wrapper", "DataParallel' object has no attribute 'classes'")
    assert records(error.run) == [{"columns": 3}]  # forward is passed on


def test_dp_attribute_behind_wrapper_cured():
    assert records(cured("dp_attribute_behind_wrapper", nproc=1)) == [{"columns": 3}, {"classes": 3}]


def test_dp_module_prefix():
    error = broken("dp_module_prefix", r'Unexpected key\(s\) in state_dict: "module.weight", "module.bias"')
    assert records(error.run) == [{"names": ["module.weight", "module.bias"]}]


def test_dp_module_prefix_cured():
    assert records(cured("dp_module_prefix", nproc=1)) == [{"names": ["weight", "bias"]}, {"loaded": True}]


def test_dp_parameters_elsewhere():
    error = broken("dp_parameters_elsewhere", r"must have its parameters and buffers on device \w+(:0)? \(device")
    assert str(error).count("found one of them on device: meta") == 1


def test_dp_parameters_elsewhere_cured():
    assert records(cured("dp_parameters_elsewhere", nproc=1)) == [{"shape": [6, 3]}]


def test_dp_no_accelerator():
    run = faulty("dp_no_accelerator", nproc=1)
    assert records(run) == [{"share": 8}, {"names": ["module.weight", "module.bias"]}]  # the whole batch, at once
    assert not run.ranks[0].stdout and not run.ranks[0].stderr  # and not a word


def test_dp_no_accelerator_cured():
    run = cured("dp_no_accelerator", nproc=1)
    assert run.ranks[0].stdout == "4 devices asked for, 0 found: the module runs alone, on the CPU\n"


def test_batch_size_meaning():
    updates = of_ranks(faulty("batch_size_meaning"), "in_update")
    assert updates == 2 * [(32, 32)]  # of the 64 samples, where 4 updates of 16 were meant


def test_batch_size_meaning_cured():
    assert of_ranks(cured("batch_size_meaning"), "in_update") == 4 * [(16, 16)]


def test_dataparallel_kept():
    weights = of_ranks(faulty("dataparallel_kept"), "weight")
    assert len(weights) == 8 and all(map(apart, weights))
    assert weights[-1] == pytest.approx((1, 2), abs=0.02)  # each rank has what its own data ask for


def test_dataparallel_kept_cured():
    weights = of_ranks(cured("dataparallel_kept"), "weight")
    assert len(weights) == 8 and all(map(equal, weights)) and weights[-1][0] == pytest.approx(1.5, abs=0.02)
