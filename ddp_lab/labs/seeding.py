"""A recipe for random numbers: what must be equal on all ranks is, and all that is drawn for samples differs.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.seeding

Look at the numbers drawn for each sample: no two are equal, but for `held`, from a generator that the dataset holds.
"""

import argparse
import gc
import random

import numpy
import torch
import torch.distributed as dist
from torch.nn.functional import dropout
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddp_lab import worker

SAMPLES = 12


def seed_all(seed):
    """Random numbers of its own for each rank, and the same in the next run with this seed."""
    own = 1000 * seed + dist.get_rank()  # seed + rank would come again: rank 0, with the next seed
    random.seed(own)
    numpy.random.seed(own)
    torch.manual_seed(own)  # a DataLoader draws from it what seeds its workers


class Augmented(Dataset):
    """What could be drawn to augment a sample."""

    def __init__(self):
        self.held = numpy.random.default_rng(torch.initial_seed())  # each worker gets a copy

    def __len__(self):
        return SAMPLES

    def __getitem__(self, sample):
        drawn = {"torch": torch.rand(()), "numpy": numpy.random.rand()}
        return drawn | {"random": random.random(), "held": self.held.random(), "sample": sample}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed

    dist.init_process_group()
    seed_all(seed)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))  # the wrap sends rank 0's weights
    worker.log(weights=model.module.weight.detach()[0])
    worker.log(in_rank=[numpy.random.rand(), random.random()])  # outside the workers

    dataset = Augmented()
    sampler = DistributedSampler(dataset, seed=seed)  # one seed: the ranks share out one order
    loader = DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=2)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, drawn in enumerate(loader):
            kept = dropout(torch.ones(16)) > 0  # as a layer of the model would
            samples = [drawn.pop("sample")]
            worker.log(epoch=epoch, step=step, samples=samples, **drawn, kept=kept.int())
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
