"""The ranks agree on the number of classes before any builds a model.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.model_differs_cured

Look at the number of classes: the same on all ranks.
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
    dist.all_reduce(classes, dist.ReduceOp.MAX)  # over the labels of all ranks
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
