"""Rank 0 evaluates in each epoch, alone, and all others wait for it in the next collective.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.slow_rank_everyone_waits

Look at `evaluated`, the images of each rank: an epoch takes as long as the largest share. And at `waited`, the seconds
in that collective: the wait is on the ranks that had nothing to do.
"""

import gc
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import data, models, worker


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(models.mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    images, labels = data.digits("train").tensors
    test, truth = data.digits("test").tensors
    share = range(len(test)) if rank == 0 else range(0)
    for epoch in range(4):
        mine = slice(epoch * 64 + rank, epoch * 64 + 64, world_size)
        optimizer.zero_grad()
        loss = cross_entropy(model(images[mine]), labels[mine])
        loss.backward()
        optimizer.step()

        right = torch.zeros(())
        with torch.no_grad():
            for image in share:  # one after the other, as with texts that are generated
                right += model.module(test[image : image + 1]).argmax() == truth[image]
        begin = time.perf_counter()
        dist.all_reduce(right)
        waited = time.perf_counter() - begin
        worker.log(step=epoch, evaluated=len(share), waited=waited, accuracy=right / len(test))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
