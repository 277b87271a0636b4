"""The faults of communication hooks, and their cures."""

import math

import pytest
from faulty import STALL, cured, equal, faulty, line_of, of_ranks

import ddp_lab as lab

WITHOUT_GPUS = {"CUDA_VISIBLE_DEVICES": ""}


def gradients(run):
    """For each step the gradient, one number, on each rank."""
    return [tuple(own[0] for own in step) for step in of_ranks(run, "gradient")]


def test_hook_without_division():
    assert gradients(faulty("hook_without_division")) == [(3.0, 3.0)]  # of 1 and 2


def test_hook_without_division_cured():
    assert gradients(cured("hook_without_division")) == [(1.5, 1.5)]


def fails(name, text, code, **options):
    """The error of a fault that fails in the one line with that code."""
    with pytest.raises(lab.RankError, match=text) as error:
        faulty(name, **options)
    assert error.value.line == line_of(f"faults/{name}", code)
    return error.value


def test_hook_wrong_name():
    assert all(not rank.records for rank in fails("hook_wrong_name", "KeyError: 'bucket'", "register_comm").run.ranks)


def test_hook_wrong_name_cured():
    assert gradients(cured("hook_wrong_name")) == [(1.5, 1.5)]


def test_hook_returns_tensor():
    fails("hook_returns_tensor", "must return a torch.futures.Future object, but got torch.Tensor", ".backward()")


def test_hook_returns_tensor_cured():
    assert gradients(cured("hook_returns_tensor")) == [(1.5, 1.5)]


def test_hook_returns_nothing():
    error = fails("hook_returns_nothing", "SIGSEGV", ".backward()")  # torch does not refuse it: it dies
    assert all(not rank.records for rank in error.run.ranks)


def test_hook_returns_nothing_cured():
    assert gradients(cured("hook_returns_nothing")) == [(1.5, 1.5)]


def test_hook_registered_twice():
    error = fails("hook_registered_twice", "can only be called once", "register_comm_hook(None, fp16")
    assert [record["step"] for record in error.run.ranks[error.rank].records] == [0, 1]


def test_hook_registered_twice_cured():
    run = cured("hook_registered_twice", count=True)
    assert gradients(run) == [(1.5, 1.5)] * 4
    sent = run.collectives.query("rank == 1 and op == 'all_reduce'")
    assert list(zip(sent["step"], sent["dtype"], strict=True)) == [
        (0, "float32"),
        (1, "float32"),
        (2, "float16"),
        (3, "float16"),
    ]


def test_fp16_overflow():
    run = faulty("fp16_overflow")
    assert of_ranks(run, "mine") == [([70000.0], [1.0])] and gradients(run) == [(math.inf, math.inf)]


def test_fp16_overflow_cured():
    ((first, second),) = gradients(cured("fp16_overflow"))
    assert first == second == pytest.approx(35000.5, rel=2**-8) and first != 35000.5  # within its eight digits


def went_well(run):
    """Whether all ranks came to the end, with the same gradients in all four steps."""
    return run.ok and [equal(step) for step in of_ranks(run, "gradient")] == [True] * 4


def test_powersgd_buckets():
    run = faulty("powersgd_buckets", stall=STALL, timeout=60, check=False)
    # It hangs, as a rule; it can also be aborted, meet the group's limit, or train other gradients on each rank.
    assert not went_well(run)
    before = [[record["gradient"] for record in rank.records[:2]] for rank in run.ranks]
    assert before[0] == before[1] and len(before[0]) == 2  # until PowerSGD begins
    if isinstance(run.error, lab.HangError):
        assert line_of("faults/powersgd_buckets", ".backward()") in {spot["line"] for spot in run.error.where}


def test_powersgd_buckets_cured():
    run = cured("powersgd_buckets", count=True)
    assert went_well(run)
    sent = run.collectives.query("op == 'all_reduce'").groupby(["rank", "step"]).size()
    for rank in (0, 1):
        assert list(sent[rank]) == [
            1,
            6,
            18,
            18,
        ]  # at first one bucket, then six, for each of which PowerSGD sends thrice


def of_seeds(run):
    """The record of each seed, the same on both ranks."""
    first, second = (rank.records for rank in run.ranks)
    assert first == second and [record["seed"] for record in first] == [0, 1, 2]
    return first


def test_error_feedback_forgotten():
    for record in of_seeds(faulty("error_feedback_forgotten")):
        assert record["off"] > 0.7 and record["largest"] > 3 * record["whole"]
        assert record["still"] > 0.7  # of the weights have never moved


def test_error_feedback_forgotten_cured():
    for record in of_seeds(cured("error_feedback_forgotten")):
        assert 0 < record["off"] < 0.4 and record["largest"] < 1.5 * record["whole"]
        assert record["still"] < 0.6


def test_hook_state_not_saved():
    run = faulty("hook_state_not_saved")
    assert of_ranks(run, "steps") == [(step, step) for step in range(1, 7)]  # it has begun anew
    assert all(min(off) > 1e-3 for off in of_ranks(run, "off"))


def test_hook_state_not_saved_cured():
    run = cured("hook_state_not_saved")
    assert of_ranks(run, "steps") == [(step, step) for step in range(7, 13)]
    assert of_ranks(run, "off") == [(0, 0)] * 6


def test_hook_state_before_rebuild():
    run = faulty("hook_state_before_rebuild")
    assert of_ranks(run, "steps") == [(step, step) for step in range(7, 13)]  # it goes on, with another's errors
    assert all(min(off) > 1e-3 for off in of_ranks(run, "off"))


def test_hook_state_before_rebuild_cured():
    run = cured("hook_state_before_rebuild")
    assert of_ranks(run, "steps") == [(step, step) for step in range(7, 13)]
    assert of_ranks(run, "off") == [(0, 0)] * 6


def test_post_local_sgd_no_subgroup():
    options = {"nproc": 4, "env": WITHOUT_GPUS}
    error = fails("post_local_sgd_no_subgroup", "Default group size only takes effect", ".backward()", **options)
    assert [record["step"] for record in error.run.ranks[error.rank].records] == [0, 1]


def test_post_local_sgd_no_subgroup_cured():
    run = cured("post_local_sgd_no_subgroup", nproc=4)
    assert gradients(run) == [(2.5,) * 4] * 2 + [(1.5, 1.5, 3.5, 3.5)] * 2
