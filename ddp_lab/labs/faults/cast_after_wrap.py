"""The model is cast to another dtype after the wrap: its gradients are no longer averaged, and no error says so.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.cast_after_wrap

Look at the gradient: each rank has its own, from step 0 on. (The cast gives the parameters new gradient accumulators,
and DDP's hooks are on the old ones.)
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
    net.double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    torch.manual_seed(rank)  # each has data of its own
    for step in range(5):
        loss = model(torch.randn(8, 4, dtype=torch.float64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worker.log(step=step, gradient=net[0].weight.grad.abs().sum())

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
