"""The hook waits for its future, so PowerSGD has one bucket at a time. (One bucket for all does as well.)

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.powersgd_buckets_cured

Look at the gradients: in all steps they are the same on all ranks.
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def compress(state, bucket):
    future = powerSGD_hook(state, bucket)
    future.wait()  # no overlap with backward any more
    return future


def main():
    # It ends a hang by hand, but not each: an all-reduce that no thread has begun is never too late.
    dist.init_process_group(timeout=timedelta(seconds=20))
    torch.manual_seed(dist.get_rank())  # each rank has data of its own
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
    model = DistributedDataParallel(net, bucket_cap_mb=0.01)  # each layer is more: a bucket for each
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=2), compress)

    for step in range(4):
        net.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        worker.log(step=step, gradient=sum(p.grad.double().abs().sum() for p in net.parameters()))
    main.group = dist.group.WORLD  # kept to the end: torch aborts where a callback is the last to let go of it
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
