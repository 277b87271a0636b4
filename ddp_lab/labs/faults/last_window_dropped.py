"""The number of micro-batches is no multiple of the window: the last ones reach no step, and leak into the next epoch.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.last_window_dropped

Look at the shares (the element of the gradient that belongs to a sample is what it weighs in the step): a mean's add
up to 1. And at `left`: samples whose gradient no step has used.
"""

import contextlib
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

WINDOW = 4  # micro-batches in an effective step


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    samples = torch.eye(10 * world_size)  # each moves a weight of its own
    net = nn.Linear(len(samples), 1, bias=False)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    micro_batches = samples[rank::world_size].split(1)
    step = 0
    for epoch in range(2):
        for i, x in enumerate(micro_batches):
            size = WINDOW
            closing = (i + 1) % WINDOW == 0
            with contextlib.nullcontext() if closing else model.no_sync():
                loss = model(x).mean()
                (loss / size).backward()
            if closing:
                worker.log(step=step, epoch=epoch, shares=net.weight.grad[0])
                optimizer.step()
                optimizer.zero_grad()
                step += 1
    left = 0 if net.weight.grad is None else net.weight.grad.count_nonzero()
    worker.log(left=left)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
