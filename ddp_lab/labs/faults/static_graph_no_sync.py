"""`static_graph=True`, and the first micro-batch is in `no_sync()`: DDP fails there.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.static_graph_no_sync

Look at the error, and at the all-reduces in a step: count them.
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
    torch.manual_seed(dist.get_rank())  # each rank has data of its own
    net = nn.Linear(4, 1)
    model = DistributedDataParallel(net, static_graph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    worker.log(static_graph=True)
    dist.barrier()  # both have logged it before one of them can fail

    for step in range(3):
        for i in range(WINDOW):
            syncs = i + 1 == WINDOW
            with contextlib.nullcontext() if syncs else model.no_sync():
                loss = model(torch.randn(8, 4)).square().mean()
                (loss / WINDOW).backward()
        worker.log(step=step, gradient=net.weight.grad.abs().sum())
        optimizer.step()
        optimizer.zero_grad()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
