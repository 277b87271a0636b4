"""nn.DataParallel on virtual devices: torch's own, on a CPU, with a count of what each device receives, sends, holds.

A virtual device is a number. What lies on device 1, 2, ... is a copy with memory of its own; device 0 has the module.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections import Counter
from numbers import Integral

import torch
from torch import nn
from torch.autograd import Function
from torch.nn.parameter import is_lazy

from ddp_lab.errors import InputError

PHASES = ("scatter", "replicate", "gather", "reduce")
KINDS = ("parameters", "buffers", "inputs", "outputs", "gradients")

MOST = 64  # devices, each of which is a thread here

_busy = threading.Lock()


class VirtualDataParallel(nn.DataParallel):
    """`nn.DataParallel(module, range(devices))` where there are no such devices.

        model = VirtualDataParallel(net, devices=4)
        model(batch).sum().backward()
        model.ledger, model.peak

    forward, scatter, replicate, parallel_apply (a thread for each device) and gather are torch's own; replaced are the
    four operations below them that copy between GPUs. Everything is computed on the CPU. `module` must be there.

    Outputs and gradients are those of `module` on the whole batch, up to rounding, if what a sample adds to them
    depends on that sample alone (BatchNorm and Dropout: see notebook 01). CPU autocast reaches the replicas, but not
    its dtype: torch hands that to no thread of DataParallel's, so theirs is the default, bfloat16.

    `host_inputs`: whether the batch lies in the host's memory (device 0 then receives its share like the others) or, as
    counted by default, on device 0.

    One call at a time: while one goes on, parts of torch.nn.parallel are replaced, for all threads. A second call, from
    another thread or from inside the module, is a RuntimeError; so is a torch without these parts.
    InputError for devices that are no whole number from 1 to 64, for a module that is not on the CPU, and for one with
    lazy parameters that have no values yet.
    """

    def __init__(self, module: nn.Module, devices: int = 4, *, host_inputs: bool = False):
        devices = _checked(module, devices)
        if not isinstance(host_inputs, bool):
            raise InputError(f"host_inputs={host_inputs!r} is unknown. Write True, or leave it out.")
        tensors = [*module.parameters(), *module.buffers()]
        if any(map(is_lazy, tensors)):
            raise InputError("the module has lazy parameters, without values so far. Call the module once first.")
        if elsewhere := {str(tensor.device) for tensor in tensors if tensor.device.type != "cpu"}:
            raise InputError(f"the module is on {', '.join(sorted(elsewhere))}; virtual devices are on the CPU.")
        _parts()  # says so now if they are not there
        nn.Module.__init__(self)  # not DataParallel's, which looks for accelerators
        self.module, self.dim = module, 0
        self.device_ids, self.output_device = list(range(devices)), 0
        self.src_device_obj = torch.device("cpu")
        self.host_inputs = host_inputs
        self._step = _Step(devices)

    @property
    def ledger(self):
        """What moved between devices in the last step: a pandas table, a row for each phase and device.

        Columns: device, phase ("scatter", "replicate", "gather", "reduce"), bytes_in (received from other devices or
        the host), bytes_out (sent to other devices). What stays on its device is not counted. A step begins with each
        call of the model; its backward() counts to it, as long as no other call has begun.

        A phase is counted with the way back: backward() returns the outputs' gradients to the devices (gather:
        bytes_out of device 0), and the inputs' gradients, if they need any, to device 0 (scatter: bytes_in of device
        0). The way back of replicate has a name of its own, reduce: each replica's gradients go to device 0.

        Counted is each copy that DataParallel asks for, from its source to its target. Which way a library such as
        NCCL then takes is not seen here. With one device torch calls the module itself: nothing is moved.
        """
        import pandas

        moved = self._step.moved
        rows = [
            (device, phase, moved[phase, device, "in"], moved[phase, device, "out"])
            for phase in PHASES
            for device in self.device_ids
        ]
        return pandas.DataFrame(rows, columns=["device", "phase", "bytes_in", "bytes_out"])

    @property
    def peak(self):
        """What each device held in the last step, in bytes: a pandas table, a row for each device.

        - parameters, buffers: the module's on device 0, copies on the others.
        - inputs: of its share; on device 0 the whole batch, unless `host_inputs`.
        - outputs: of its share; on device 0 also all of them, gathered.
        - gradients: of the parameters, as its replica has them, and of its outputs; on device 0 also the parameters'
          sum, and those of all outputs.
        - total: of these. It is as if all were there at one time, so it is never too small.

        A second backward() through the same step (retain_graph, or one for gradients of gradients) adds its gradients
        to those of the first. Activations, which are kept for backward(), and the optimizer's state are not counted.
        With one device torch calls the module itself, and its outputs and gradients are not counted either.
        """
        import pandas

        held = self._step.held
        rows = [[held[kind, device] for kind in KINDS] for device in self.device_ids]
        table = pandas.DataFrame(rows, columns=KINDS, index=pandas.Index(self.device_ids, name="device"))
        return table.assign(total=table.sum(axis="columns"))

    def scatter(self, *args):
        """torch's own: the shares of each device. A new step begins."""
        self._step = _Step(len(self.device_ids))
        self._step.hold("parameters", 0, *self.module.parameters())
        self._step.hold("buffers", 0, *self.module.buffers())
        with self._virtual():
            return super().scatter(*args)

    def replicate(self, *args):
        """torch's own: a replica of the module for each device."""
        with self._virtual():
            return super().replicate(*args)

    def parallel_apply(self, *args):
        """torch's own: the replicas' outputs, computed in a thread each."""
        with self._virtual():
            return super().parallel_apply(*args)

    def gather(self, *args):
        """torch's own: the outputs on device 0."""
        with self._virtual():
            return super().gather(*args)

    def __getstate__(self):
        state = self.__dict__.copy()
        state["_step"] = _Step(len(self.device_ids))  # copies begin with a count of their own
        return state

    @contextlib.contextmanager
    def _virtual(self):
        """While this is entered torch's functions work on virtual devices, and count into this step."""
        replicate, scatter_gather, parallel_apply = _parts()
        step, share_stays = self._step, not self.host_inputs

        class Scatter:
            @staticmethod
            def apply(devices, sizes, dim, tensor):
                return _Scatter.apply(step, len(devices), dim, share_stays, tensor)

        class Gather:
            @staticmethod
            def apply(device, dim, *tensors):
                return _Gather.apply(step, dim, *tensors)

        def broadcast(tensors, devices, detach=False):
            return _broadcast(step, tensors, len(devices), detach)

        busy = _busy  # that of this process: a fork inside the call gets another
        if not busy.acquire(blocking=False):
            raise RuntimeError(
                "VirtualDataParallel was called while another call goes on. Call it from one thread at a time, "
                "and not inside a module that is itself on virtual devices."
            )
        try:
            with (
                _replaced(replicate, "_broadcast_coalesced_reshape", broadcast),
                _replaced(scatter_gather, "Scatter", Scatter),
                _replaced(scatter_gather, "Gather", Gather),
                _replaced(parallel_apply, "torch", _TorchOnOneCpu()),
            ):
                yield
        finally:
            busy.release()


def data_parallel(module: nn.Module, devices: int = 4) -> nn.DataParallel:
    """torch's own DataParallel, if this machine has so many accelerators, else VirtualDataParallel.

    The module is moved to device 0. `isinstance(model, VirtualDataParallel)` tells which it is.
    Errors as in VirtualDataParallel.
    """
    devices = _checked(module, devices)
    if devices <= torch.accelerator.device_count():
        if (kind := torch.accelerator.current_accelerator().type) != "mps":
            return nn.DataParallel(module.to(torch.device(kind, 0)), list(range(devices)))
    return VirtualDataParallel(module, devices)


def _checked(module, devices):
    """The number of devices, if this is one, and `module` a module."""
    if not isinstance(module, nn.Module):
        raise InputError(f"{module!r:.60} is no nn.Module. Give a model, such as nn.Linear(3, 2).")
    if isinstance(devices, bool) or not isinstance(devices, Integral) or devices < 1:
        raise InputError(f"devices={devices!r} is no number of devices. Write devices=4.")
    if devices > MOST:
        raise InputError(f"devices={devices}: there are {MOST} virtual devices at most, a thread each.")
    return int(devices)


# ---- what is counted


class _Step:
    """The count of one step."""

    def __init__(self, devices: int):
        self.devices = devices
        self.moved: Counter = Counter()  # (phase, device, "in" or "out") -> bytes
        self.held: Counter = Counter()  # (kind, device) -> bytes

    def move(self, phase, source, target, *tensors):
        """Tensors go from one device to another; None is the host."""
        size = sum(map(size_of, tensors))
        if source is not None:
            self.moved[phase, source, "out"] += size
        if target is not None:
            self.moved[phase, target, "in"] += size

    def hold(self, kind, device, *tensors):
        self.held[kind, device] += sum(map(size_of, tensors))


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements; of a sparse one: values and indices."""
    if tensor.is_sparse:
        tensor = tensor.coalesce()
        return size_of(tensor.values()) + size_of(tensor.indices())
    return tensor.numel() * tensor.element_size()


# ---- what stands in for the copies between GPUs: as torch/nn/parallel/_functions.py, on one CPU


class _Scatter(Function):
    @staticmethod
    def forward(ctx, step, devices, dim, share_stays, tensor):
        ctx.step, ctx.dim, ctx.share_stays = step, dim, share_stays
        shares = []
        for device, chunk in enumerate(tensor.chunk(devices, dim)):  # may be fewer than there are devices
            stays = share_stays and device == 0  # there it is part of the batch, and no copy
            if not stays:
                step.move("scatter", 0 if share_stays else None, device, chunk)
            step.hold("inputs", device, tensor if stays else chunk)
            shares.append(chunk if stays else chunk.clone())
        return tuple(shares)

    @staticmethod
    def backward(ctx, *gradients):
        for device, gradient in enumerate(gradients):
            if not (ctx.share_stays and device == 0):
                ctx.step.move("scatter", device, 0 if ctx.share_stays else None, gradient)
        return None, None, None, None, _cat(gradients, ctx.dim)


class _Gather(Function):
    @staticmethod
    def forward(ctx, step, dim, *outputs):
        ctx.step, ctx.dim = step, dim
        ctx.scalars = dim == 0 and all(output.dim() == 0 for output in outputs)
        if ctx.scalars:
            warnings.warn(
                "Was asked to gather along dimension 0, but all input tensors were scalars; "
                "will instead unsqueeze and return a vector.",
                stacklevel=2,
            )
            outputs = [output.view(1) for output in outputs]
        ctx.sizes = [output.size(dim) for output in outputs]
        for device, output in enumerate(outputs):
            step.hold("outputs", device, output)
            if device:
                step.move("gather", device, 0, output)
        gathered = _cat(outputs, dim)
        step.hold("outputs", 0, gathered)
        return gathered

    @staticmethod
    def backward(ctx, gradient):
        ctx.step.hold("gradients", 0, gradient)
        shares = []
        for device, share in enumerate(gradient.split(ctx.sizes, ctx.dim)):
            if device:
                ctx.step.move("gather", 0, device, share)
                ctx.step.hold("gradients", device, share)
            shares.append(share.clone() if device else share)
        if ctx.scalars:
            shares = [share[0] for share in shares]
        return None, None, *shares


def _cat(tensors, dim):
    """As a copy between GPUs does: in the tensors' own dtype, whatever autocast says."""
    with torch.autocast("cpu", enabled=False):
        return torch.cat(tensors, dim)


class _Broadcast(Function):
    @staticmethod
    def forward(ctx, step, devices, *tensors):
        ctx.step, ctx.number = step, len(tensors)
        copies = _copies(tensors, devices)
        frozen = [number for number, needed in enumerate(ctx.needs_input_grad[2:]) if not needed]
        ctx.mark_non_differentiable(*(copy[number] for copy in copies for number in frozen))
        return tuple(tensor for copy in copies for tensor in copy)

    @staticmethod
    def backward(ctx, *gradients):
        # As in torch's: what a replica has not used, and what is frozen, comes as zeros, and travels as well.
        of_device = [gradients[start : start + ctx.number] for start in range(0, len(gradients), ctx.number)]
        for device, own in enumerate(of_device):
            ctx.step.hold("gradients", device, *own)
            if device:
                ctx.step.move("reduce", device, 0, *own)
        sums = [sum(same[1:], start=same[0]) for same in zip(*of_device, strict=True)]
        ctx.step.hold("gradients", 0, *sums)
        return None, None, *sums


def _copies(tensors, devices):
    """For each device a list of these tensors: themselves on device 0, copies on the others."""
    return [[tensor.clone() if device else tensor for tensor in tensors] for device in range(devices)]


def _broadcast(step, tensors, devices, detach):
    """What replicate._broadcast_coalesced_reshape returns. `detach`: outside autograd."""
    if not tensors:
        return []
    kind = "parameters" if isinstance(tensors[0], nn.Parameter) else "buffers"
    for device in range(1, devices):
        step.move("replicate", 0, device, *tensors)
        step.hold(kind, device, *tensors)
    if detach:
        return _copies([tensor.detach() for tensor in tensors], devices)
    flat = _Broadcast.apply(step, devices, *tensors)
    return [list(flat[start : start + len(tensors)]) for start in range(0, len(flat), len(tensors))]


# ---- the places inside torch.nn.parallel where they stand


def _parts():
    """The modules torch.nn.parallel.replicate, .scatter_gather and .parallel_apply, which have what is replaced here.

    These are private ways of torch's, relied on in this one place. RuntimeError where they are not there.
    """
    found = []
    for name, parts in {
        "replicate": ["_broadcast_coalesced_reshape"],
        "scatter_gather": ["Scatter", "Gather"],
        "parallel_apply": ["torch"],
    }.items():
        # From sys.modules: as attributes of torch.nn.parallel two of these names are functions.
        module = sys.modules.get(f"torch.nn.parallel.{name}")
        for part in parts:
            if not hasattr(module, part):
                raise RuntimeError(
                    f"torch {torch.__version__} has no torch.nn.parallel.{name}.{part}, by which DataParallel runs on "
                    "virtual devices. 2.14 has; with GPUs, nn.DataParallel itself needs none of this."
                )
        found.append(module)
    return found


@contextlib.contextmanager
def _replaced(module, name, value):
    before = getattr(module, name)
    try:
        _originals[module, name] = before
        setattr(module, name, value)
        yield
    finally:
        setattr(module, name, before)
        _originals.pop((module, name), None)


_originals = {}  # (module, name) -> what is replaced at this moment


def _forked():
    """In a child that was forked during a call: that call goes on in the parent, and torch is here as it was."""
    global _busy
    _busy = threading.Lock()
    while _originals:
        place, before = _originals.popitem()
        setattr(*place, before)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _TorchOnOneCpu:
    """`torch` as parallel_apply sees it: its accelerator is the CPU, which has no streams to wait for.

    Only that module sees it: the replicas' own code asks the real torch.
    """

    def __init__(self):
        self.accelerator = self
        self.is_available = lambda: True
        self.current_accelerator = lambda: torch.device("cpu")
        self.current_stream = self.device_index = lambda device: contextlib.nullcontext()
        self.is_autocast_enabled = lambda: torch.is_autocast_enabled("cpu")

    def __getattr__(self, name):
        return getattr(torch, name)
