"""Every step calls the wrapper, whose forward prepares DDP for the backward that follows.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.module_called_directly_cured

Look at the gradient: the average of the ranks' own in every step; and at the weight: the same on all ranks.
"""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (weight,) = model.parameters()

    x = torch.full((1, 1), rank + 1.0)  # so the gradient of the loss is 1 on rank 0, 2 on rank 1: on average 1.5
    for step in range(3):
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worker.log(step=step, gradient=weight.grad.item(), weight=weight.item())

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
