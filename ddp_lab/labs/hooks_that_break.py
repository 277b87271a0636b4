"""The hooks that torch ships and that may not run here: each is tried, and what becomes of it is told.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.hooks_that_break

Look at `result`: "works", or the error, and the function that raised it. On gloo four of torch 2.14's do not work.
"""

import gc
import os
import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks, powerSGD_hook, quantization_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def batched_power_sgd(model):
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.batched_powerSGD_hook)


def zero_step(model):
    """The step of the optimizer within the hook: each rank makes that of its own share of the parameters."""
    group = model.process_group
    zero = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, process_group=group, overlap_with_ddp=True, lr=0.01
    )
    model.register_comm_hook(None, ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, model, zero))


HOOKS = {
    "allreduce_hook": lambda model: model.register_comm_hook(None, default_hooks.allreduce_hook),  # as it should be
    "batched_powerSGD_hook": batched_power_sgd,
    "quantization_pertensor_hook": lambda model: model.register_comm_hook(
        dist.group.WORLD, quantization_hooks.quantization_pertensor_hook
    ),
    "quantization_perchannel_hook": lambda model: model.register_comm_hook(
        dist.group.WORLD, quantization_hooks.quantization_perchannel_hook
    ),
    "hook_with_zero_step": zero_step,
}


def main():
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    # hook_with_zero_step looks at the name of the group's backend, and this one has a name. Made without,
    # as by init_process_group(), it is "undefined", and the hook is let through.
    group = dist.new_group(backend=dist.get_default_backend_for_device(device))
    for name, register in HOOKS.items():
        net = nn.Linear(64, 64).to(device)
        model = DistributedDataParallel(net, process_group=group)  # a hook that has failed leaves the model spoiled
        try:
            register(model)
            for _ in range(4):  # batched PowerSGD compresses from the third on
                model(torch.randn(8, 64, device=device)).square().mean().backward()
            result, place = "works", None
        except Exception as error:
            result = f"{type(error).__name__}: {error}".splitlines()[0]
            place = traceback.extract_tb(error.__traceback__)[-1].name
        worker.log(hook=name, result=result, place=place)
        print(f"{name}: {result}")
        dist.barrier()  # the ranks try the next one together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
