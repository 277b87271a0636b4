"""What is reported as the loss of a step is that of one micro-batch, on one rank.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.loss_not_reduced

Look at `loss` of each rank, and at `losses`: those of all micro-batches of the step.
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
    rank = dist.get_rank()
    torch.manual_seed(rank)  # each rank has data of its own
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for step in range(8):
        losses = []
        for i in range(WINDOW):
            with contextlib.nullcontext() if i + 1 == WINDOW else model.no_sync():
                loss = (model(torch.randn(8, 4)) - 1).square().mean()
                (loss / WINDOW).backward()
            losses.append(loss.detach())  # .item() would wait for a GPU, each time
        optimizer.step()
        optimizer.zero_grad()
        worker.log(step=step, loss=loss, losses=torch.stack(losses))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
