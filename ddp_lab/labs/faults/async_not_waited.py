"""The result of an asynchronous collective is used before wait(): no error, and on rank 0 it is not there yet.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.async_not_waited

Look at rank 0's total, which should be 11.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()

    if rank == 1:  # comes later: it waits for a word from rank 0
        dist.recv(torch.empty(1), src=0)
    total = torch.tensor([10.0**rank])
    before = total.clone()
    work = dist.all_reduce(total, async_op=True)
    used = total.clone()
    if rank == 0:
        dist.send(torch.ones(1), dst=1)
    work.wait()
    worker.log(collective="total", before=before, after=used)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
