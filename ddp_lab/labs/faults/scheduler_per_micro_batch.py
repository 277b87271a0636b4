"""The schedule is made for effective steps, and moves on with each micro-batch.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.scheduler_per_micro_batch

Look at the learning rate of each effective step: it is to fall to 0 over the whole training.
"""

import contextlib
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

STEPS, WINDOW = 8, 4  # effective steps; micro-batches in each


def main():
    dist.init_process_group()
    net = nn.Linear(4, 1)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

    for step in range(STEPS):
        for i in range(WINDOW):
            closing = i + 1 == WINDOW
            with contextlib.nullcontext() if closing else model.no_sync():
                loss = model(torch.randn(8, 4)).square().mean()
                (loss / WINDOW).backward()
            if closing:
                worker.log(step=step, rate=optimizer.param_groups[0]["lr"])
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
