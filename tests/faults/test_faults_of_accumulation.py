"""The faults of gradient accumulation, and their cures."""

import os
from fractions import Fraction
from pathlib import Path

import pytest
from faulty import apart, cured, equal, faulty, line_of, of_ranks

import ddp_lab as lab

COUNTED = {"count": True}


def shares(run):
    """For each step, what each sample weighs in its gradient, as a fraction; the same on all ranks."""
    rows = of_ranks(run, "shares")
    assert all(own == row[0] for row in rows for own in row)
    return [[Fraction(share).limit_denominator(100) for share in row[0]] for row in rows]


def all_reduces(run):
    """{step: all-reduces of each rank}, those after the last step as None."""
    rows = run.collectives.query("op == 'all_reduce'")
    found = {}
    for step in dict.fromkeys(rows["step"].astype(object).where(rows["step"].notna(), None)):
        own = rows[rows["step"].isna() if step is None else rows["step"] == step]["rank"].value_counts()
        assert set(own) == {own[0]} and len(own) == len(run.ranks)
        found[step] = own[0]
    return found


def mean_over(samples, of):
    """The shares of a mean over these of so many samples."""
    return [Fraction(1, len(samples)) if sample in samples else 0 for sample in range(of)]


WINDOWS = [mean_over(range(8), 16), mean_over(range(8, 16), 16)]  # two windows of 4, on two ranks


def test_accumulation_syncs_each():
    run = faulty("accumulation_syncs_each", **COUNTED)
    assert shares(run) == WINDOWS  # nothing is wrong with the gradient
    assert all_reduces(run) == {0: 4, 1: 4}


def test_accumulation_syncs_each_cured():
    run = cured("accumulation_syncs_each", **COUNTED)
    assert shares(run) == WINDOWS
    assert all_reduces(run) == {0: 1, 1: 1}


def test_accumulation_not_divided():
    assert shares(faulty("accumulation_not_divided")) == [[4 * share for share in step] for step in WINDOWS]


def test_accumulation_not_divided_cured():
    assert shares(cured("accumulation_not_divided")) == WINDOWS


EPOCH = [mean_over(range(8), 20), mean_over(range(8, 16), 20), mean_over(range(16, 20), 20)]


def test_last_window_dropped():
    run = faulty("last_window_dropped")
    leaked = [Fraction(1, 8) if sample in (*range(8), *range(16, 20)) else 0 for sample in range(20)]
    assert shares(run) == [EPOCH[0], EPOCH[1], leaked, EPOCH[1]]  # the first epoch's last four, in the second
    assert of_ranks(run, "left") == [(2, 2)]
    assert of_ranks(run, "epoch") == [(0, 0), (0, 0), (1, 1), (1, 1)]


def test_last_window_dropped_cured():
    run = cured("last_window_dropped", **COUNTED)
    assert shares(run) == 2 * EPOCH
    assert of_ranks(run, "left") == [(0, 0)]
    assert all_reduces(run) == dict.fromkeys(range(6), 1)


def test_no_sync_forward_outside():
    run = faulty("no_sync_forward_outside", **COUNTED)
    assert shares(run) == WINDOWS
    assert all_reduces(run) == {0: 4, 1: 4}  # as if no_sync() were not there


def test_no_sync_forward_outside_cured():
    run = cured("no_sync_forward_outside", **COUNTED)
    assert shares(run) == WINDOWS
    assert all_reduces(run) == {0: 1, 1: 1}


def test_step_inside_no_sync():
    run = faulty("step_inside_no_sync", **COUNTED)
    assert all_reduces(run) == {}
    for (first, second), begin in zip(of_ranks(run, "shares"), (0, 8), strict=True):
        assert first == mean_over(range(begin, begin + 8, 2), 16)  # each rank's own samples, and no others
        assert second == mean_over(range(begin + 1, begin + 8, 2), 16)


def test_step_inside_no_sync_cured():
    run = cured("step_inside_no_sync", **COUNTED)
    assert shares(run) == WINDOWS
    assert all_reduces(run) == {0: 1, 1: 1}


def test_zero_grad_per_micro_batch():
    last = [[Fraction(1, 8) if sample in ends else 0 for sample in range(16)] for ends in ((6, 7), (14, 15))]
    assert shares(faulty("zero_grad_per_micro_batch")) == last


def test_zero_grad_per_micro_batch_cured():
    assert shares(cured("zero_grad_per_micro_batch")) == WINDOWS


def test_mean_of_means_in_training():
    run = faulty("mean_of_means_in_training")
    assert of_ranks(run, "lengths") == [([1, 2, 1, 2], [3, 5, 2, 4])]
    lengths = [1, 3, 2, 5, 1, 2, 2, 4]
    assert shares(run) == [[Fraction(1, 8 * length) for length in lengths for _ in range(length)]]


@pytest.mark.parametrize("nproc", [2, 4])
def test_mean_of_means_in_training_holds_for_any_cut(nproc):
    run = faulty("mean_of_means_in_training_cured", nproc=nproc, **COUNTED)
    assert shares(run) == [mean_over(range(20), 20)]
    assert all_reduces(run) == {0: 2}  # the number of tokens, and the bucket


def test_mean_of_means_in_training_cured():
    assert shares(cured("mean_of_means_in_training")) == [mean_over(range(20), 20)]


def test_clip_before_sync():
    run = faulty("clip_before_sync")
    assert all(equal(step) and step[0] > 0.1 for step in of_ranks(run, "off"))  # wrong, and on all ranks alike


def test_clip_before_sync_cured():
    run = cured("clip_before_sync")
    assert all(off < 1e-5 for step in of_ranks(run, "off") for off in step)


def test_scheduler_per_micro_batch():
    # Whatever hides warnings here is undone for the run: without such a setting it can start warm.
    env = {"PYTHONWARNINGS": "default"} if "PYTHONWARNINGS" in os.environ else None
    run = faulty("scheduler_per_micro_batch", env=env)
    rates = [rate for rate, _ in of_ranks(run, "rate")]
    assert rates[0] < 0.1 and rates[1] < 0.01 < rates[3]  # at the bottom after two of eight steps, and up again
    assert all("lr_scheduler.step()` before `optimizer.step()`" in rank.stderr for rank in run.ranks)


def test_scheduler_per_micro_batch_cured():
    run = cured("scheduler_per_micro_batch")
    rates = [rate for rate, _ in of_ranks(run, "rate")]
    assert rates[0] == 0.1 and rates == sorted(rates, reverse=True) and rates[4] == pytest.approx(0.05)
    assert not any("lr_scheduler" in rank.stderr for rank in run.ranks)


def test_scheduler_per_rank():
    run = faulty("scheduler_per_rank")
    rates, weights = of_ranks(run, "rate"), of_ranks(run, "weight")
    assert equal(rates[0]) and equal(weights[1])  # at first
    assert rates[-1][1] == 0.1 > 1e6 * rates[-1][0]
    assert apart(weights[2]) and apart(weights[-1])


def test_scheduler_per_rank_cured():
    run = cured("scheduler_per_rank")
    assert all(equal(step) for name in ("rate", "weight") for step in of_ranks(run, name))


def test_static_graph_no_sync():
    with pytest.raises(lab.RankError, match="expect_autograd_hooks_ INTERNAL ASSERT FAILED") as error:
        faulty("static_graph_no_sync")
    assert error.value.line == line_of("faults/static_graph_no_sync", ".backward()")
    assert [rank.records for rank in error.value.run.ranks] == [[{"static_graph": True}]] * 2


def test_static_graph_no_sync_cured():
    run = cured("static_graph_no_sync", **COUNTED)
    assert all(equal(step) for step in of_ranks(run, "gradient"))
    assert (counts := all_reduces(run)) == {0: 3, 1: 1, 2: 1}, counts
    first = run.collectives.query("rank == 0 and step == 0 and op == 'all_reduce'")
    sent = list(zip(first["dtype"], first["numel"], strict=True))
    assert sent == [("int32", 2), ("float32", 5), ("float32", 5)]  # which parameters were used; the gradients, twice


def test_static_graph_changes_nothing_in_the_gradient(tmp_path):
    text = Path(lab.__file__).with_name("labs").joinpath("faults", "static_graph_no_sync_cured.py").read_text()
    plain = tmp_path / "plain.py"
    plain.write_text(text.replace(", static_graph=True)", ")").replace(" or (step, i) == (0, 0)", ""))
    run = lab.torchrun(plain, show="none", count=True)
    assert all_reduces(run) == {0: 1, 1: 1, 2: 1}
    expected = [pytest.approx(step, rel=1e-5) for step in of_ranks(run, "gradient")]
    assert of_ranks(cured("static_graph_no_sync"), "gradient") == expected


def truth(run):
    """For each step the mean loss over all micro-batches and ranks."""
    steps = [[loss for own in step for loss in own] for step in of_ranks(run, "losses")]
    return [sum(losses) / len(losses) for losses in steps]


def test_loss_not_reduced():
    run = faulty("loss_not_reduced")
    told = of_ranks(run, "loss")
    assert all(apart(step) for step in told)
    assert [step[0] for step in told] == [losses[0][-1] for losses in of_ranks(run, "losses")]
    assert max(abs(step[0] - right) / right for step, right in zip(told, truth(run), strict=True)) > 0.2


def test_loss_not_reduced_cured():
    run = cured("loss_not_reduced")
    told = of_ranks(run, "loss")
    assert all(equal(step) for step in told)
    assert [step[0] for step in told] == pytest.approx(truth(run))
