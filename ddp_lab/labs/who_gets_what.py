"""What DistributedSampler gives to each rank: how many samples, and which.

    torchrun --standalone --nproc-per-node 3 -m ddp_lab.labs.who_gets_what

Look at the samples of each rank: the steps from one to the next, and what stands in the last place.
"""

import argparse
import gc

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--drop-last", action="store_true")
    args = parser.parse_args()

    dist.init_process_group()
    dataset = range(args.samples)  # sample i is the number i
    # How many ranks there are, and which of them this is, the sampler asks the group.
    sampler = DistributedSampler(dataset, shuffle=False, drop_last=args.drop_last)
    worker.log(share=len(sampler))
    for step, batch in enumerate(DataLoader(dataset, batch_size=1, sampler=sampler)):
        worker.log(step=step, samples=batch)

    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
