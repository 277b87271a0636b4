"""The layer is frozen first and the model wrapped then: DDP waits for no gradient that does not come.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.frozen_after_wrap_cured

Look at the gradient of the head: equal on all ranks, in every step.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    net[0].requires_grad_(False)  # train the head alone
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1)

    torch.manual_seed(rank)  # each has data of its own
    for step in range(5):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worker.log(step=step, head=net[1].weight.grad.abs().sum())
        dist.barrier()  # both have logged it before one of them can fail

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
