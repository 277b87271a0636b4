"""The head is replaced after the wrap: DDP waits for gradients of the old one, which will never come.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.head_replaced_after_wrap

Look at step 0: no error, and yet other gradients on each rank, in both layers. The error comes one step late.
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
    torch.manual_seed(0)  # all begin with the same weights, also in the new head
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model = DistributedDataParallel(net)
    net[1] = nn.Linear(4, 3)  # three classes from now on
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    torch.manual_seed(rank)  # and each has data of its own
    for step in range(5):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        body, head = (layer.weight.grad.abs().sum() for layer in net)
        worker.log(step=step, body=body, head=head)
        dist.barrier()  # both have logged it before one of them can fail

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
