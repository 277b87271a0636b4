"""The sampler shuffles, the loader does not.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.shuffle_and_sampler_cured

Look at the samples of each rank: shuffled, and shared out.
"""

import gc

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker


def main():
    dist.init_process_group()
    dataset = range(12)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)
    for step, batch in enumerate(loader):
        worker.log(step=step, samples=batch)

    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
