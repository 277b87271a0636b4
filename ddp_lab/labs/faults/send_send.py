"""Two ranks exchange a number, and both send first: each waits for the other to receive.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.send_send

Look at where each rank stands.
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    # torch's own limit: it ends the hang of a run by hand. A notebook's clocks are shorter.
    dist.init_process_group(timeout=timedelta(minutes=2))
    rank = dist.get_rank()
    other = 1 - rank

    mine, theirs = torch.tensor([10.0**rank]), torch.zeros(1)
    dist.send(mine, dst=other)
    dist.recv(theirs, src=other)
    worker.log(collective="send, recv", before=mine, after=theirs)

    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
