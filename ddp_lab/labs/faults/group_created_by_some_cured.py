"""One rank alone makes a group: it waits there for the others, and they wait elsewhere.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.group_created_by_some_cured

Look at where each rank stands.
"""

import gc
from datetime import timedelta

import torch.distributed as dist

from ddp_lab import worker


def main():
    # torch's own limit: it ends the hang of a run by hand. A notebook's clocks are shorter.
    dist.init_process_group(timeout=timedelta(minutes=2))
    rank = dist.get_rank()

    dist.new_group()  # for reports, which only rank 0 writes
    dist.barrier()
    worker.log(rank=rank, groups="made")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
