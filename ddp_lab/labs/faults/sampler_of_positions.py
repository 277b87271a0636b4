"""`DistributedSampler` around a weighted sampler deals out positions in its list, and never asks what stands there.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.sampler_of_positions

Look at the samples of weight 0, which are never to be read: they are.
"""

import gc

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, WeightedRandomSampler

from ddp_lab import worker

SAMPLES = 12
WEIGHTS = [0] * 3 + [1] * 6 + [3] * 3  # some never, and some three times as often as others


def main():
    dist.init_process_group()

    for epoch in range(2):
        chance = torch.Generator().manual_seed(epoch)  # the same on all ranks
        draws = WeightedRandomSampler(WEIGHTS, SAMPLES, generator=chance)
        shares = DistributedSampler(draws, shuffle=False)
        loader = DataLoader(range(SAMPLES), batch_size=2, sampler=shares)
        for step, batch in enumerate(loader):
            worker.log(epoch=epoch, step=step, samples=batch)
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
