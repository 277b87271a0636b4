"""Each rank takes its part of the batch that was meant.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.batch_size_meaning_cured

Look at the samples in an update, over all ranks, and at the number of updates in an epoch.
"""

import gc

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker


def main():
    dist.init_process_group()
    samples = torch.randn(64, 4)
    batch_size = 16 // dist.get_world_size()
    loader = DataLoader(samples, batch_size, sampler=DistributedSampler(samples))
    for step, batch in enumerate(loader):
        in_update = torch.tensor(len(batch))
        dist.all_reduce(in_update)
        worker.log(step=step, mine=len(batch), in_update=in_update)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
