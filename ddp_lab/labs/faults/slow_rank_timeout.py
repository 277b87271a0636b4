"""Rank 0 evaluates alone, and the others wait for its result: longer than they may.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.slow_rank_timeout

Look at which rank has the error, and at what the other one was doing then.
"""

import gc
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker

BATCHES = 20


def main():
    dist.init_process_group(timeout=timedelta(seconds=3))  # of every wait; gloo's default: 30 minutes
    rank, hits = dist.get_rank(), torch.zeros(())
    worker.log(rank=rank, batches=BATCHES)
    dist.all_reduce(torch.zeros(()))  # all are here

    mine = range(BATCHES) if rank == 0 else []
    for batch in mine:
        time.sleep(0.25)  # a model at work
        hits += 10
        worker.log(batch=batch)
    dist.all_reduce(hits)
    worker.log(hits=hits)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
