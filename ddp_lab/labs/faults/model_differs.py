"""Each rank counts the classes in its own share of the data, and builds another model.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.model_differs

Look for the rank whose error is about sizes; what the others say follows from it.
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

LABELS = torch.tensor([0, 0, 2, 1, 1, 1])


def main():
    # torch's own limit: it ends the wait for a rank that has met an error. A notebook's clocks are shorter.
    dist.init_process_group(timeout=timedelta(minutes=2))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = LABELS[rank::world_size]
    classes = mine.max() + 1
    worker.log(classes=classes)
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, classes))

    loss = torch.nn.functional.cross_entropy(model(torch.randn(len(mine), 4)), mine)
    loss.backward()
    worker.log(loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
