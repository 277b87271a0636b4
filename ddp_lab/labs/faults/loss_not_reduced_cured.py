"""What is reported as the loss of a step is the mean over its micro-batches and all ranks.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.loss_not_reduced_cured

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
        losses, mean = [], torch.zeros(())
        for i in range(WINDOW):
            with contextlib.nullcontext() if i + 1 == WINDOW else model.no_sync():
                loss = (model(torch.randn(8, 4)) - 1).square().mean()
                (loss / WINDOW).backward()
            mean += loss.detach() / WINDOW
            losses.append(loss.detach())  # .item() would wait for a GPU, each time
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(mean)
        worker.log(step=step, loss=mean / dist.get_world_size(), losses=torch.stack(losses))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
