"""A layer is added after the wrap: DDP listed the parameters when it was made, and does not know the new ones.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.parameter_added_after_wrap

Look at the two gradients: the old layer's are equal on all ranks, the new layer's are not. No error.
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
    torch.manual_seed(0)  # all begin with the same weights, also in the new layer
    net = nn.Sequential(nn.Linear(4, 4))
    model = DistributedDataParallel(net)
    net.append(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    torch.manual_seed(rank)  # and each has data of its own
    for step in range(5):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        old, new = (layer.weight.grad.abs().sum() for layer in net)
        worker.log(step=step, old=old, new=new)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
