"""The gradients are cleared for each micro-batch: a step knows the last one of its window alone.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.zero_grad_per_micro_batch

Look at the shares: the element of the gradient that belongs to a sample is what this sample weighs in the step.
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
    samples = torch.eye(2 * WINDOW * world_size)  # each moves a weight of its own
    net = nn.Linear(len(samples), 1, bias=False)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    micro_batches = samples[rank::world_size].split(1)
    for i, x in enumerate(micro_batches):
        closing = (i + 1) % WINDOW == 0
        optimizer.zero_grad()
        with contextlib.nullcontext() if closing else model.no_sync():
            loss = model(x).mean()
            (loss / WINDOW).backward()
        if closing:
            worker.log(step=i // WINDOW, shares=net.weight.grad[0])
            optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
