"""What DistributedSampler gives to each rank: the samples of every step, and how many of them.

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
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--drop-last", action="store_true")
    args = parser.parse_args()

    dist.init_process_group()
    dataset = range(args.samples)  # sample i is the number i
    # How many ranks there are, and which of them this is, the sampler asks the group.
    sampler = DistributedSampler(dataset, shuffle=args.shuffle, drop_last=args.drop_last)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    worker.log(share=len(sampler), steps=len(loader))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            worker.log(epoch=epoch, step=step, samples=batch)
    print(f"{len(sampler)} samples in {len(loader)} steps")

    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
