"""The lab of overlap: what is sent while a backward pass goes on, by hand and by DDP."""

import statistics

import pytest

import ddp_lab as lab
from ddp_lab.meters.timeline import overlap

LAYER = 4 * (512 * 512 + 512)  # bytes
WAYS = ["by hand", "DDP", "DDP with options"]


@pytest.fixture(scope="module", params=[(), ("--backwards",)], ids=["in order", "backwards"])
def run(request):
    env = {"CUDA_VISIBLE_DEVICES": ""}
    found = lab.torchrun("overlap", "--steps", "4", *request.param, trace=True, count=True, env=env, show="none")
    found.backwards = bool(request.param)
    return found


def of(table, way):
    """The rows of the steps of a way."""
    return table[[step % len(WAYS) == WAYS.index(way) for step in table["step"].fillna(-1)]]


def test_the_three_take_turns_and_have_the_same_gradients(run):
    for rank in run.ranks:
        assert [record["way"] for record in rank.records] == WAYS * 4
    gradients = {record["gradients"] for rank in run.ranks for record in rank.records}
    assert max(gradients) - min(gradients) < 1e-6 * max(map(abs, gradients))


def test_a_layer_is_a_bucket_and_with_the_options_buckets_stay_as_they_were_made(run):
    sent = run.collectives.query("rank == 0 and op == 'all_reduce' and dtype == 'float32' and step >= 9")
    layers = [LAYER] * 5
    assert list(of(sent, "DDP")["bytes"]) == layers
    assert list(of(sent, "by hand")["bytes"]) == [4 * 512 * 512, 4 * 512] * 5
    assert list(of(sent, "DDP with options")["bytes"]) == [4 * 512, *layers[1:], 4 * 512 * 512]


def test_ddp_sends_while_backward_goes_on_and_the_options_take_that_away(run):
    rows = run.timeline().query("name != 'barrier' and step >= 6")
    begun = {}
    for (step, _), own in rows.groupby(["step", "rank"]):
        end = own.loc[own["kind"] == "backward", "end"].max() - 0.01  # a third of what a layer takes
        begins = own.loc[own["kind"] == "communication", "begin"]
        begun.setdefault(WAYS[step % len(WAYS)], []).append(int((begins < end).sum()))
    usual = [statistics.median_low(begun[way]) for way in WAYS]  # a busy machine may disturb a step
    assert usual[:2] == [0, 4]
    assert usual[2] <= 1 if run.backwards else usual[2] == 4
    assert overlap(of(rows, "by hand"), 0) == 0
