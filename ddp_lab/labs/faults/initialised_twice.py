"""The script joins the group, and so does the set-up that it calls: the second time is refused.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.initialised_twice

Look at the error, and at the line of `main` that led there.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def set_up(seed):
    """What every script of a project begins with."""
    dist.init_process_group()
    torch.manual_seed(seed + dist.get_rank())


def main():
    dist.init_process_group()
    set_up(seed=0)

    mine = torch.rand(())
    total = mine.clone()
    dist.all_reduce(total)
    worker.log(mine=mine, total=total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
