"""The ranks lower their rates by the loss of all of them.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.scheduler_per_rank_cured

Look at the learning rate and the weight of each rank.
"""

import contextlib
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

WINDOW = 2  # micro-batches in an effective step


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    net = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(net.weight)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)

    for step in range(12):
        mean = torch.zeros(())  # of the window
        for i in range(WINDOW):
            closing = i + 1 == WINDOW
            with contextlib.nullcontext() if closing else model.no_sync():
                loss = (model(torch.ones(1, 1)) - rank).square().mean()  # each has its own aim
                (loss / WINDOW).backward()
            mean += loss.detach() / WINDOW
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        scheduler.step(mean)
        worker.log(step=step, rate=optimizer.param_groups[0]["lr"], weight=net.weight.item())

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
