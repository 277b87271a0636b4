"""The model is wrapped again once the layer is thawed: the new wrap knows all that is trained now.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.unfrozen_after_wrap_cured

Look at the weights: equal on all ranks, in every step. The optimizer may stay, since the parameters are the same.
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
    net[0].requires_grad_(False)  # the head alone, at first
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    torch.manual_seed(rank)  # each has data of its own
    for step in range(6):
        if step == 3:  # and then the body too
            net[0].requires_grad_(True)
            model = DistributedDataParallel(net)
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        body, head = (layer.weight.detach().abs().sum() for layer in net)
        worker.log(step=step, body=body, head=head)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
