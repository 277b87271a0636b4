"""The dataset splits itself over all workers of all ranks: together they read every sample once.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.iterable_not_split_cured

Look at the samples of each rank, and at the last record: how many were read in all, how many of them are distinct.
"""

import gc

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ddp_lab import worker

SAMPLES = 12


class Stream(IterableDataset):
    """Samples one after the other, as from a file: no index that a sampler could deal out."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        me = get_worker_info()  # of this DataLoader worker
        part, parts = me.id * self.world_size + self.rank, me.num_workers * self.world_size
        return iter(range(part, SAMPLES, parts))


def main():
    dist.init_process_group()
    stream = Stream(dist.get_rank(), dist.get_world_size())
    loader = DataLoader(stream, batch_size=3, num_workers=2)

    times = torch.zeros(SAMPLES, dtype=torch.long)  # how often each sample is read
    for step, batch in enumerate(loader):
        worker.log(step=step, samples=batch)
        times[batch] += 1

    dist.all_reduce(times)  # over all ranks
    worker.log(steps=step + 1, total=times.sum(), distinct=(times > 0).sum())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
