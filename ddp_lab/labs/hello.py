"""The smallest run: each rank says who it is, and all add up one number.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.hello

Look at: every rank runs this whole file; each has a number of its own; the sum is the same on all.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()  # the ranks find each other by what torchrun has set
    rank, world_size = dist.get_rank(), dist.get_world_size()

    mine = rank + 1.0
    total = torch.tensor(mine)
    dist.all_reduce(total)  # all ranks call it; afterwards `total` is the sum on each

    print(f"rank {rank} of {world_size}: I have {mine}, the sum is {total.item()}")
    worker.log(rank=rank, world_size=world_size, mine=mine, total=total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
