"""Gradients are clipped after each micro-batch: each rank cuts its own, and what was added so far is cut again.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.clip_before_sync

Look at `off`: how far the gradient is from the clipped gradient of the whole batch.
"""

import contextlib
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

WINDOW, MOST = 4, 1.0


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    drawn = torch.Generator().manual_seed(0)  # the same on all ranks: each knows what is right
    samples = 4 * torch.randn(3, WINDOW, world_size, 8, generator=drawn)  # 4: much to clip
    net = nn.Linear(8, 1, bias=False)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    for step, window in enumerate(samples):
        for i, x in enumerate(window[:, rank]):  # of each micro-batch this rank's sample
            closing = i + 1 == WINDOW
            with contextlib.nullcontext() if closing else model.no_sync():
                loss = model(x[None]).mean()
                (loss / WINDOW).backward()
            nn.utils.clip_grad_norm_(net.parameters(), MOST)
        whole = window.mean((0, 1))  # the gradient of all samples: the loss is linear
        right = whole * min(1, MOST / whole.norm())
        gradient = net.weight.grad[0]
        worker.log(step=step, off=(gradient - right).norm())
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
