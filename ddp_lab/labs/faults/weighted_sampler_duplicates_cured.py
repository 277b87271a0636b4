"""All ranks draw the same list, and each takes its share of it.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.weighted_sampler_duplicates_cured

Look at the samples of each rank, and at the number of draws: as many on all ranks as there are samples.
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
        chance = torch.Generator().manual_seed(epoch)  # the same on all ranks
        draws = WeightedRandomSampler(WEIGHTS, SAMPLES, generator=chance)
        mine = list(draws)[dist.get_rank() :: dist.get_world_size()]
        loader = DataLoader(range(SAMPLES), batch_size=2, sampler=mine)
        for step, batch in enumerate(loader):
            worker.log(epoch=epoch, step=step, samples=batch)
        worker.log(epoch=epoch, steps=len(loader))
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
