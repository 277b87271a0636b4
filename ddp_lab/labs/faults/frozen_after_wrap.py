"""A layer is frozen after the wrap: DDP waits for its gradients, which will never come.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.frozen_after_wrap

Look at step 0: no error, and yet other gradients on each rank, in the layer that is trained. The error comes one
step late.
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
    model = DistributedDataParallel(net)
    net[0].requires_grad_(False)  # train the head alone
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
