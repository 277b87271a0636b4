"""The sampler gives each rank its own share: together they read every sample once.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.no_sampler_cured

Look at the samples of each rank, and at the last record: how many were read in all, how many of them are distinct.
"""

import gc

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker

SAMPLES = 12


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(rank)
    loader = DataLoader(range(SAMPLES), batch_size=2, sampler=DistributedSampler(range(SAMPLES)))

    times = torch.zeros(SAMPLES, dtype=torch.long)  # how often each sample is read
    for step, batch in enumerate(loader):
        worker.log(step=step, samples=batch)
        times[batch] += 1

    dist.all_reduce(times)  # over all ranks
    worker.log(steps=len(loader), total=times.sum(), distinct=(times > 0).sum())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
