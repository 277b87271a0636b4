"""A weighted sampler knows nothing of ranks: each draws a whole epoch, and with one seed all draw the same.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.weighted_sampler_duplicates

Look at the samples of each rank, and at the number of draws: as many on each rank as there are samples.
"""

import gc

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, WeightedRandomSampler

from ddp_lab import worker

SAMPLES = 12
WEIGHTS = [0] * 3 + [1] * 6 + [3] * 3  # some never, and some three times as often as others


def main():
    dist.init_process_group()
    torch.manual_seed(0)

    for epoch in range(2):
        draws = WeightedRandomSampler(WEIGHTS, SAMPLES)
        loader = DataLoader(range(SAMPLES), batch_size=2, sampler=draws)
        for step, batch in enumerate(loader):
            worker.log(epoch=epoch, step=step, samples=batch)
        worker.log(epoch=epoch, steps=len(loader))
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
