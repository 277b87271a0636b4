"""The epoch lies in memory that the rank and its workers share: they see it change.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.epoch_not_in_workers_cured

Look at the samples of a rank: another order in every epoch.
"""

import argparse
import gc

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ddp_lab import worker

SAMPLES = 12


class Shuffled(IterableDataset):
    """A stream in another order for each epoch, split over all workers of all ranks."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size
        self.epoch = torch.tensor(0).share_memory_()  # one for the rank and its workers

    def set_epoch(self, epoch):
        self.epoch.fill_(epoch)

    def __iter__(self):
        me = get_worker_info()
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch.item()))
        part, parts = me.id * self.world_size + self.rank, me.num_workers * self.world_size
        return iter(order[part::parts].tolist())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--anew", action="store_true", help="start new workers in each epoch")
    alive = not parser.parse_args().anew
    dist.init_process_group()
    dataset = Shuffled(dist.get_rank(), dist.get_world_size())
    loader = DataLoader(dataset, batch_size=1, num_workers=2, persistent_workers=alive)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for step, batch in enumerate(loader):
            worker.log(epoch=epoch, step=step, samples=batch)
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
