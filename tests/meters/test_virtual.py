"""VirtualDataParallel: torch's own DataParallel on virtual devices, and its count against one done by hand."""

import copy
import os
import sys
import threading
import warnings

import numpy
import pytest
import torch
from torch import nn

from ddp_lab import models
from ddp_lab.errors import InputError
from ddp_lab.meters import virtual
from ddp_lab.meters.virtual import PHASES, VirtualDataParallel, data_parallel

FLOAT, LONG = 4, 8  # bytes


def step(module, batch, devices, **options):
    """The model after one forward and backward, and its outputs."""
    model = VirtualDataParallel(module, devices, **options)
    outputs = model(batch)
    outputs.sum().backward()
    return model, outputs


def moved(model):
    """{phase: (bytes in, bytes out) of each device}."""
    table = model.ledger
    assert list(table.columns) == ["device", "phase", "bytes_in", "bytes_out"]
    assert len(table) == len(PHASES) * len(model.device_ids)
    rows = {phase: table[table["phase"] == phase].sort_values("device") for phase in PHASES}
    return {phase: list(zip(of["bytes_in"], of["bytes_out"], strict=True)) for phase, of in rows.items()}


def grads(module):
    return [parameter.grad for parameter in module.parameters() if parameter.requires_grad]


# ---- it trains what the module trains


class Whole(nn.Module):
    """Small whole numbers throughout: every sum is exact, in whichever order."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-3, 4, parameter.shape))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("devices", [1, 2, 3, 4, 7])
def test_gradients_on_whole_numbers_are_the_modules_bit_for_bit(devices):
    torch.manual_seed(devices)
    net = Whole()
    twin, batch = copy.deepcopy(net), torch.randint(-3, 4, (12, 5)).float().requires_grad_()
    own = batch.detach().clone().requires_grad_()
    _, outputs = step(net, batch, devices)
    expected = twin(own)
    expected.sum().backward()
    assert torch.equal(outputs, expected)
    assert all(torch.equal(*pair) for pair in zip(grads(net), grads(twin), strict=True))
    assert torch.equal(batch.grad, own.grad)


@pytest.mark.parametrize("make, inputs", [
    (models.mlp, lambda: torch.randn(13, 1, 8, 8).double()),
    (lambda: models.cnn().eval(), lambda: torch.randn(13, 1, 8, 8).double()),  # eval: BatchNorm mixes no samples
    (models.tied, lambda: torch.randint(12, (13,))),
], ids=["mlp", "cnn", "tied"])
def test_twenty_steps_in_float64_are_the_modules(make, inputs):
    torch.manual_seed(0)
    net = make().double()
    twin = copy.deepcopy(net)
    model = VirtualDataParallel(net, 3)
    optimizer = torch.optim.SGD([*net.parameters(), *twin.parameters()], lr=0.1, momentum=0.9)
    for _ in range(20):
        batch = inputs()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        twin(batch).square().mean().backward()
        differences = [(a - b).abs().max() for a, b in zip(grads(net), grads(twin), strict=True)]
        assert max(differences) < 1e-12
        optimizer.step()
    assert all((a - b).abs().max() < 1e-12 for a, b in zip(net.parameters(), twin.parameters(), strict=True))


def test_each_device_has_a_thread_and_a_copy_of_its_own():
    seen = {}

    class Look(nn.Linear):
        def forward(self, x):
            seen[threading.get_ident()] = (self.weight.data_ptr(), x.data_ptr(), len(x))
            barrier.wait(20)  # all are here at once, so that no thread's number is given again
            return super().forward(x)

    barrier, net = threading.Barrier(3), Look(4, 2)
    model, _ = step(net, torch.randn(7, 4), 3)
    weights, inputs, rows = zip(*seen.values(), strict=True)
    assert len(set(weights)) == len(set(inputs)) == 3 and net.weight.data_ptr() in weights
    assert sorted(rows) == [1, 3, 3] and threading.get_ident() not in seen


def test_of_what_replicas_change_in_place_device_0s_share_of_the_batch_alone_is_changed():
    class Change(nn.Linear):
        def forward(self, x):
            return super().forward(x.add_(1))

    batch = torch.zeros(5, 3)
    VirtualDataParallel(Change(3, 2), 2)(batch)
    assert batch[:, 0].tolist() == [1, 1, 1, 0, 0]


def test_what_is_frozen_is_frozen_in_each_replica():
    net = models.tied()
    model = VirtualDataParallel(net, 2)
    replicas = model.replicate(net, model.device_ids)
    assert [(copy.enter.weight.requires_grad, copy.frozen.weight.requires_grad) for copy in replicas] == [
        (True, False)
    ] * 2


def test_the_phases_can_be_called_one_by_one():
    net, batch = nn.Linear(3, 2), torch.randn(4, 3)
    model = VirtualDataParallel(net, 2)
    inputs, kwargs = model.scatter((batch,), {}, model.device_ids)
    replicas = model.replicate(model.module, model.device_ids)
    assert [phase for phase, rows in moved(model).items() if rows != [(0, 0), (0, 0)]] == ["scatter", "replicate"]
    outputs = model.gather(model.parallel_apply(replicas, inputs, [{}, {}]), model.output_device)
    assert torch.equal(outputs, net(batch))
    counted = model.ledger
    model(batch)
    assert counted.equals(model.ledger)  # as a call counts it


# ---- the count, against one done by hand


def test_ledger_of_a_linear_layer():
    """Linear(3, 2), 8 rows on 4 devices: 8 parameters, 2 rows of 3 in and of 2 out on each device."""
    model, _ = step(nn.Linear(3, 2), torch.randn(8, 3), 4)
    share_in, share_out, weights = 2 * 3 * FLOAT, 2 * 2 * FLOAT, 8 * FLOAT
    assert moved(model) == {
        "scatter": [(0, 3 * share_in)] + 3 * [(share_in, 0)],
        "replicate": [(0, 3 * weights)] + 3 * [(weights, 0)],
        "gather": [(3 * share_out, 3 * share_out)] + 3 * [(share_out, share_out)],  # outputs, and their gradients back
        "reduce": [(3 * weights, 0)] + 3 * [(0, weights)],
    }
    zero = {"parameters": weights, "buffers": 0, "inputs": 4 * share_in, "outputs": 5 * share_out}
    zero["gradients"] = 2 * weights + 4 * share_out
    other = {"parameters": weights, "buffers": 0, "inputs": share_in, "outputs": share_out}
    other["gradients"] = weights + share_out
    expected = [held | {"total": sum(held.values())} for held in (zero, other, other, other)]
    assert model.peak.to_dict("records") == expected and list(model.peak.index) == [0, 1, 2, 3]


def test_ledger_of_a_convolution_with_batch_norm():
    """models.cnn: 2,762 parameters; buffers of 16 + 16 floats and one whole number; 5 images on 2 devices, 3 and 2."""
    images = torch.randn(5, 1, 8, 8, requires_grad=True)
    model, _ = step(models.cnn(), images, 2)
    image, scores, weights, buffers = 64 * FLOAT, 10 * FLOAT, 2762 * FLOAT, 32 * FLOAT + LONG
    assert moved(model) == {
        "scatter": [(2 * image, 2 * image), (2 * image, 2 * image)],  # the images, and their gradients back
        "replicate": [(0, weights + buffers), (weights + buffers, 0)],
        "gather": [(2 * scores, 2 * scores), (2 * scores, 2 * scores)],
        "reduce": [(weights, 0), (0, weights)],  # buffers have no gradient
    }
    assert list(model.peak["buffers"]) == [buffers, buffers]
    assert list(model.peak["inputs"]) == [5 * image, 2 * image]
    assert list(model.peak["outputs"]) == [(3 + 5) * scores, 2 * scores]
    assert list(model.peak["gradients"]) == [2 * weights + 5 * scores, weights + 2 * scores]


def test_ledger_of_tied_and_frozen_weights():
    """models.tied: a weight that is used twice is sent once; a frozen one travels too, and its gradient as zeros."""
    net = models.tied()
    model, _ = step(net, torch.arange(12), 3)
    word, scores, weights = LONG, 12 * FLOAT, 180 * FLOAT
    assert moved(model) == {
        "scatter": [(0, 8 * word)] + 2 * [(4 * word, 0)],
        "replicate": [(0, 2 * weights)] + 2 * [(weights, 0)],
        "gather": [(8 * scores, 8 * scores)] + 2 * [(4 * scores, 4 * scores)],
        "reduce": [(2 * weights, 0)] + 2 * [(0, weights)],
    }
    assert net.frozen.weight.grad is None
    with torch.no_grad():
        replicas = model.replicate(net, model.device_ids)
    assert all(replica.enter.weight is replica.leave.weight for replica in replicas)


def test_a_batch_on_the_host_does_not_pass_device_0():
    model, _ = step(nn.Linear(3, 2), torch.randn(8, 3), 4, host_inputs=True)
    assert moved(model)["scatter"] == 4 * [(2 * 3 * FLOAT, 0)]
    assert list(model.peak["inputs"]) == 4 * [2 * 3 * FLOAT]
    model, _ = step(nn.Linear(3, 2), torch.randn(8, 3, requires_grad=True), 4, host_inputs=True)
    assert moved(model)["scatter"] == 4 * [(2 * 3 * FLOAT, 2 * 3 * FLOAT)]  # nor do the inputs' gradients


def test_reduce_is_counted_by_backward_and_to_its_own_step():
    model = VirtualDataParallel(nn.Linear(3, 2), 2)
    first = model(torch.randn(2, 3))
    assert moved(model)["reduce"] == [(0, 0), (0, 0)]
    first.sum().backward()
    counted = model.ledger
    model(torch.randn(2, 3))
    model(torch.randn(2, 3)).sum().backward()
    assert model.ledger.equals(counted)  # one step alone, whatever came before
    with torch.no_grad():
        model(torch.randn(2, 3))
    assert moved(model)["reduce"] == [(0, 0), (0, 0)]


def test_a_second_backward_adds_its_gradients_to_those_of_the_first():
    model = VirtualDataParallel(nn.Linear(3, 2), 2)
    loss = model(torch.randn(4, 3)).sum()
    loss.backward(retain_graph=True)
    once = model.peak["gradients"]
    loss.backward()
    assert list(model.peak["gradients"]) == list(2 * once) and once.min() > 0


def test_fewer_shares_than_devices_leave_devices_out():
    model, _ = step(nn.Linear(3, 2), torch.randn(5, 3), 4)  # 2, 2, 1
    assert [received for received, _ in moved(model)["replicate"]] == [0, 32, 32, 0]
    assert [received for received, _ in moved(model)["scatter"]] == [0, 2 * 3 * FLOAT, 3 * FLOAT, 0]
    assert list(model.peak.loc[3]) == 6 * [0]


def test_a_parameter_that_is_not_used_gets_zeros_as_on_gpus():
    class Spare(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.spare = nn.Parameter(torch.ones(3))

    net = Spare()
    model, _ = step(net, torch.randn(4, 2), 2)
    assert torch.equal(net.spare.grad, torch.zeros(3))
    assert moved(model)["reduce"] == [(9 * FLOAT, 0), (0, 9 * FLOAT)]


def test_sparse_gradients_are_reduced_and_counted():
    net = nn.Embedding(10, 4, sparse=True)
    model, _ = step(net, torch.arange(6), 2)
    assert net.weight.grad.is_sparse and torch.equal(net.weight.grad.to_dense()[:, 0], (torch.arange(10) < 6).float())
    assert moved(model)["reduce"] == [(3 * (4 * FLOAT + LONG), 0), (0, 3 * (4 * FLOAT + LONG))]


def test_one_device_runs_the_module_itself():
    net = nn.Linear(3, 2)
    model, _ = step(net, torch.randn(4, 3), 1)
    assert set(moved(model)) == set(PHASES) and model.ledger[["bytes_in", "bytes_out"]].sum().sum() == 0
    assert model.peak.loc[0, "parameters"] == 8 * FLOAT


def test_before_the_first_call_nothing_is_counted_and_a_copy_counts_anew():
    model, _ = step(nn.Linear(3, 2), torch.randn(4, 3), 2)
    for fresh in (VirtualDataParallel(nn.Linear(3, 2), 2), copy.deepcopy(model)):
        assert fresh.ledger["bytes_in"].sum() == 0 and fresh.peak["total"].sum() == 0


# ---- as torch's own


def test_scalars_are_gathered_with_torchs_warning():
    class Loss(nn.Linear):
        def forward(self, x):
            return super().forward(x).mean()

    with pytest.warns(UserWarning, match="Was asked to gather along dimension 0, but all input tensors were scalars"):
        model, outputs = step(Loss(3, 2), torch.randn(6, 3), 3)
    assert outputs.shape == (3,)
    assert moved(model)["gather"] == [(2 * FLOAT, 2 * FLOAT)] + 2 * [(FLOAT, FLOAT)]


def test_outputs_keep_their_kind_and_inputs_may_come_by_name():
    class Two(nn.Linear):
        def forward(self, x, scale=1, *, y):
            return {"sum": super().forward(x) * scale + y, "none": None}

    model = VirtualDataParallel(Two(3, 2), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = model(torch.ones(4, 3), 2, y=torch.zeros(4, 2))
    assert outputs["sum"].shape == (4, 2) and outputs["none"] is None


def test_autocast_and_no_grad_reach_the_replicas():
    model = VirtualDataParallel(nn.Linear(3, 2), 2)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        outputs = model(torch.ones(4, 3))
    assert outputs.dtype == torch.bfloat16 and not outputs.requires_grad
    assert model(torch.ones(4, 3)).dtype == torch.float32


class Half(nn.Linear):
    def forward(self, x):
        return super().forward(x).half()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make, expected", [(nn.Linear, torch.bfloat16), (Half, torch.float16)])
def test_outputs_are_gathered_as_they_are_under_every_autocast(dtype, make, expected):
    """bfloat16, the default: torch tells the threads of DataParallel no dtype."""
    batch, model = torch.ones(4, 3, requires_grad=True), VirtualDataParallel(make(3, 2), 2)
    with torch.autocast("cpu", dtype=dtype):
        outputs = model(batch)
        outputs.sum().backward()
    assert outputs.dtype == expected and batch.grad.shape == batch.shape


def test_an_error_names_its_replica_and_leaves_torch_as_it_was():
    before = [vars(module).copy() for module in virtual._parts()]
    model = VirtualDataParallel(nn.Linear(3, 2), 2)
    with pytest.raises(RuntimeError, match="Caught RuntimeError in replica [01] on device [01]"):
        model(torch.ones(4, 5))
    assert [vars(module) for module in virtual._parts()] == before
    model(torch.ones(4, 3))


def test_a_parameter_that_has_moved_to_another_device_is_refused_by_torch():
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model = VirtualDataParallel(net, 2)
    net[1].to("meta")
    with pytest.raises(RuntimeError, match=r"on device cpu \(device_ids\[0\]\) but found one of them on device: meta"):
        model(torch.ones(4, 3))


# ---- what it says when it cannot


@pytest.mark.parametrize("devices", [0, -1, 2.0, True, "2", [0, 1]])
def test_what_is_no_number_of_devices_is_refused(devices):
    with pytest.raises(InputError, match="is no number of devices"):
        VirtualDataParallel(nn.Linear(1, 1), devices)
    with pytest.raises(InputError, match="is no number of devices"):
        data_parallel(nn.Linear(1, 1), devices)


def test_a_number_of_devices_may_be_numpys_and_has_a_limit():
    model = VirtualDataParallel(nn.Linear(3, 2), numpy.int64(2))
    assert model.device_ids == [0, 1] and model(torch.ones(4, 3)).shape == (4, 2)
    assert len(VirtualDataParallel(nn.Linear(3, 2), 64).ledger) == 4 * 64
    with pytest.raises(InputError, match="devices=1000000000: there are 64 virtual devices at most"):
        VirtualDataParallel(nn.Linear(1, 1), 10**9)


@pytest.mark.parametrize("module", ["x", None, nn.Linear, [nn.Linear(1, 1)]], ids=str)
@pytest.mark.parametrize("make", [VirtualDataParallel, data_parallel])
def test_what_is_no_module_is_refused(make, module):
    with pytest.raises(InputError, match="is no nn.Module. Give a model"):
        make(module, 2)


@pytest.mark.parametrize("module, said", [
    (nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta")), "the module is on meta; virtual devices"),
    (nn.BatchNorm1d(1, affine=False, device="meta"), "the module is on meta; virtual devices"),
    (nn.LazyLinear(2), "Call the module once first"),
    (nn.LazyBatchNorm1d(affine=False), "Call the module once first"),
], ids=str)  # fmt: skip
def test_a_module_without_its_values_on_the_cpu_is_refused(module, said):
    with pytest.raises(InputError, match=said):
        VirtualDataParallel(module, 2)


@pytest.mark.parametrize("host_inputs", ["no", 1, None])
def test_host_inputs_is_true_or_false(host_inputs):
    with pytest.raises(InputError, match="host_inputs=.* is unknown. Write True, or leave it out"):
        VirtualDataParallel(nn.Linear(1, 1), 2, host_inputs=host_inputs)


@pytest.mark.parametrize("module, part", [
    ("replicate", "_broadcast_coalesced_reshape"), ("scatter_gather", "Scatter"), ("scatter_gather", "Gather"),
    ("parallel_apply", "torch"),
])  # fmt: skip
def test_a_torch_without_the_private_parts_is_named(monkeypatch, module, part):
    monkeypatch.delattr(sys.modules[f"torch.nn.parallel.{module}"], part)
    with pytest.raises(RuntimeError, match=rf"torch .* has no torch.nn.parallel.{module}.{part}, by which"):
        VirtualDataParallel(nn.Linear(1, 1), 2)


def test_a_second_call_at_the_same_time_is_refused():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = VirtualDataParallel(nn.Linear(3, 2), 2)

        def forward(self, x):
            return self.inner(x)

    with pytest.raises(RuntimeError, match="was called while another call goes on"):
        VirtualDataParallel(Nested(), 2)(torch.ones(4, 3))
    VirtualDataParallel(nn.Linear(3, 2), 2)(torch.ones(4, 3))  # and the next is free to go


def test_a_call_that_could_not_begin_leaves_the_next_free_to_go(monkeypatch):
    model = VirtualDataParallel(nn.Linear(3, 2), 2)
    with monkeypatch.context() as patch:
        patch.delattr(sys.modules["torch.nn.parallel.scatter_gather"], "Gather")
        with pytest.raises(RuntimeError, match="has no torch.nn.parallel.scatter_gather.Gather"):
            model(torch.ones(4, 3))
    assert model(torch.ones(4, 3)).shape == (4, 2)


def test_a_child_that_was_forked_during_a_call_has_torch_as_it_was_and_can_call():
    before = [vars(module).copy() for module in virtual._parts()]
    model, code = VirtualDataParallel(nn.Linear(3, 2), 2), 1
    with model._virtual():
        if not (child := os.fork()):
            try:
                restored = [vars(module) for module in virtual._parts()] == before
                model.scatter((torch.ones(4, 3),), {}, model.device_ids)
                code = 0 if restored else 2
            finally:
                os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [vars(module) for module in virtual._parts()] == before


@pytest.mark.parametrize("present, which, kind", [
    (0, "meta", "virtual"), (1, "meta", "virtual"), (2, "meta", "real"), (8, "meta", "real"), (8, "mps", "virtual"),
])  # fmt: skip
def test_data_parallel_takes_real_devices_where_there_are_enough(monkeypatch, present, which, kind):
    made = []
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: present)
    monkeypatch.setattr(virtual.nn, "DataParallel", lambda *args: made.append(args))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(which))
    model = data_parallel(nn.Linear(1, 1), 2)
    if kind == "real":
        ((module, devices),) = made
        assert module.weight.device.type == "meta" and devices == [0, 1]  # moved to the accelerator
    else:
        assert isinstance(model, VirtualDataParallel) and not made and model.device_ids == [0, 1]
