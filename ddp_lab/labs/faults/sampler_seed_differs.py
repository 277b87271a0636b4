"""The sampler gets `seed + rank`, as the random numbers of a rank do: each rank shares out an order of its own.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.sampler_seed_differs

Look at which samples both ranks read, and which none of them does.
"""

import argparse
import gc

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(args.seed + rank)  # as augmentations and dropout need it
    dataset = range(args.samples)
    sampler = DistributedSampler(dataset, seed=args.seed + rank)
    for step, batch in enumerate(DataLoader(dataset, batch_size=2, sampler=sampler)):
        worker.log(step=step, samples=batch)

    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
