"""checks of notebook 01: its own cells are run, as they stand and with mistakes in them."""

import pytest
import torch
from answering import Cells, hint
from torch import nn

import ddp_lab as lab
from ddp_lab.checks.notebook01 import CASES, ledger_of_device_0
from ddp_lab.meters.virtual import VirtualDataParallel

CELLS = Cells("01_dataparallel_pitfalls.ipynb")
run_cell = CELLS.run


@pytest.mark.parametrize("samples, devices", [case[3:] for case in CASES])
def test_the_ledger_by_hand_is_the_one_that_is_counted(samples, devices):
    model = VirtualDataParallel(nn.Linear(3, 2), devices)
    model(torch.randn(samples, 3)).sum().backward()
    first = model.ledger.query("device == 0")
    counted = {row.phase: (row.bytes_in, row.bytes_out) for row in first.itertuples()}
    assert counted == ledger_of_device_0(8 * 4, 3 * 4, 2 * 4, samples, devices)


def changed(**phases):
    """The right function, with some phases computed otherwise, from (in, out) and the arguments."""

    def device_0(*case):
        found = ledger_of_device_0(*case)
        return found | {name: change(found[name], case) for name, change in phases.items()}

    return device_0


WRONG_LEDGERS = {
    "starter unchanged": (lambda *case: dict.fromkeys(ledger_of_device_0(*case), (0, 0)), "all is still 0"),
    "no function": ({"scatter": (0, 0)}, "the answer is a dict, not a function"),
    "nothing returned": (lambda *case: None, "the function returns nothing"),
    "a phase left out": (lambda *case: {"scatter": (0, 1)}, "the phase replicate is missing"),
    "one number": (changed(gather=lambda own, case: 5), "gather is 5. It is to be two numbers"),
    "exchanged": (changed(reduce=lambda own, case: own[::-1]), "reduce: in and out are exchanged"),
    "no way back": (changed(gather=lambda own, case: (own[0], 0)), "gather: one way is missing"),
    "inputs' gradients": (changed(scatter=lambda own, case: (own[1], own[1])), "These samples need no gradient"),
    "both ways": (changed(replicate=lambda own, case: (own[1], own[1])), "The way back of replicate is reduce"),
    "the whole batch": (changed(scatter=lambda own, case: (0, case[1] * case[3])), "that is the whole batch"),
    "a copy for itself": (changed(replicate=lambda own, case: (0, case[0] * case[4])), "one too many"),
    "even shares alone": (
        changed(scatter=lambda own, case: (0, case[1] * case[3] * (case[4] - 1) / case[4])),
        "scatter is right for even shares, and not for 10 samples on 4 devices: shares of 3, 3, 3 and 1",
    ),
    "a replica for each device": (
        changed(replicate=lambda own, case: (0, case[0] * (case[4] - 1))),
        "not for 9 samples on 4 devices: three shares of 3: the fourth device has none",
    ),
    "elements": (changed(reduce=lambda own, case: (own[0] / 4, 0)), "not yet the bytes of 96 samples on 4 devices"),
    "an error": (lambda *case: 1 / 0, "your function raised ZeroDivisionError: division by zero, for 96 samples"),
    "one device's gradients": (changed(reduce=lambda own, case: (case[0], 0)), "How many devices have a replica"),
    "from the host": (changed(scatter=lambda own, case: (own[1], 0.0)), "in and out are exchanged"),
    "its own share from the host": (changed(scatter=lambda own, case: (6144, 0)), "the batch lies on device 0"),
    "the numbers of one case": (lambda *case: ledger_of_device_0(*CASES[0]), "is right for even shares"),
    "the three of the target": (
        lambda *case: ledger_of_device_0(*(case if case in CASES[:3] else CASES[0])),
        "is right for the target's three, and not for 64 samples on 8 devices",
    ),
}


@pytest.mark.parametrize("mistake", WRONG_LEDGERS)
def test_each_wrong_ledger_has_its_own_hint(mistake):
    answer, expected = WRONG_LEDGERS[mistake]
    assert expected in hint("01.1", answer)


RETURN = "return cross_entropy(self.layer(batch), labels)"
LOSS = "loss = model(batch, labels).mean()"
WRONG_LOSSES = {
    "each sample's": (
        [("labels)\n\n\ntorch", 'labels, reduction="none")\n\n\ntorch')],
        "a loss for each of the 24 samples",
    ),
    "the scores as well": (
        [(RETURN, RETURN + ", self.layer(batch)"), (LOSS, "loss = model(batch, labels)[0].mean()")],
        "the scores beside the losses",
    ),
    "added": ([(".mean()  #", ".sum()  #")], "4 times too large"),
    "sums over samples": ([("labels)\n\n\ntorch", 'labels, reduction="sum")\n\n\ntorch')], "are sums over samples"),
    "the first alone": ([(".mean()  #", "[0]  #")], "from those of the whole batch"),
    "a vector": ([(".mean()  #", "  #")], "as a vector, one of each device"),
    "labels not split": (
        [("def forward(self, batch, labels)", "def forward(self, batch)"), (LOSS, "loss = model(batch).mean()")],
        "only arguments of the call are split",
    ),
    "two devices": ([("(net, 4)", "(net, 2)")], "the model is on 2 devices"),
    "the module called": ([(LOSS, "loss = net(batch, labels).mean()")], "the module called, and not the model"),
    "forward alone": ([(LOSS, "loss = cross_entropy(model(batch), labels)")], "forward and its call do not agree"),
    "the call alone": (
        [("def forward(self, batch, labels)", "def forward(self, batch)"), (RETURN, "return self.layer(batch)")],
        "forward and its call do not agree",
    ),
    "twice": ([(LOSS, "loss = cross_entropy(model(batch, labels), labels)")], "are losses already"),
    "no backward": ([("loss.backward()\n", "")], "Is loss.backward() missing?"),
    "the module trained": (
        [(LOSS, "model(batch, labels).mean()\nloss = net(batch, labels)")],
        "have not come from the other devices",
    ),
    "written down": ([('gathered=ledger.loc[("gather", 0), "bytes_in"]', "gathered=24")], "is written down"),
    "not logged": ([("    ratio=", "    other=")], "did not log gathered, reduced, ratio and difference"),
}


@pytest.mark.parametrize("mistake", WRONG_LOSSES)
def test_each_wrong_loss_has_its_own_hint(mistake):
    edits, expected = WRONG_LOSSES[mistake]
    assert expected in hint("01.2", run_cell("gather_less_solution.py", *edits))


ADD = "    net.count += counts.sum()\n    net.total += totals.sum(0)\n"
WRONG_STATES = {
    "set anew": ([("net.count +=", "net.count ="), ("net.total +=", "net.total =")], "it is set anew"),
    "the first share": ([("counts.sum()", "counts[0]")], "device 0's share alone"),
    "total forgotten": ([("    net.total += totals.sum(0)\n", "")], "count is right, total is still lost"),
    "total in one": ([("totals.sum(0)", "totals.sum()")], "has added up both columns"),
    "total of the first": ([("totals.sum(0)", "totals[0]")], "count is right; total ends as"),
    "no tensor": ([("torch.tensor([len(x)], device=x.device)", "len(x)")], "must be tensors"),
    "counted twice": ([("counts.sum()", "2 * counts.sum()")], "count is 14, 28, 42, 56"),
    "the module called": ([("totals = model(batch)", "totals = net(batch)")], "forward got all 7 samples at once"),
    "device 0's share twice": ([("counts.sum()", "counts.sum() + counts[0]")], "40, device 0's share twice"),
    "two devices": ([("(net, 3)", "(net, 2)")], "shares of 3, 3 and 1"),
    "fewer steps": ([("range(4)", "range(2)")], "in each of 4 steps"),
}


@pytest.mark.parametrize("mistake", WRONG_STATES)
def test_each_wrong_state_has_its_own_hint(mistake):
    edits, expected = WRONG_STATES[mistake]
    assert expected in hint("01.3", run_cell("running_mean_solution.py", *edits))


def test_changes_in_place_keep_device_0s_share():
    edits = [("self.count = self.count + len(x)", "self.count += len(x)")]
    assert "device 0's share alone" in hint("01.3", run_cell("running_mean.py", *edits))


def test_starters_are_told_what_is_missing():
    assert "still receives 192,000 bytes, the scores. " in hint("01.2", run_cell("gather_less.py"))
    assert "nothing is kept" in hint("01.3", run_cell("running_mean.py"))
    assert "the answer is nothing, not a run" in hint("01.3", None)


def test_the_solutions_and_other_ways_are_right():
    assert lab.check("01.1", ledger_of_device_0).done
    assert lab.check("01.2", run_cell("gather_less_solution.py")).done
    assert lab.check("01.3", run_cell("running_mean_solution.py")).done
    outside = [("net.count += counts.sum()", "net.count += len(batch)"), ("totals.sum(0)", "batch.sum(0)")]
    assert lab.check("01.3", run_cell("running_mean_solution.py", *outside)).done
