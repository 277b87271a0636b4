"""Each rank says first which GPU is its own.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.all_on_gpu0_cured

Needs a GPU for each rank. Look at the device that each rank has got.
"""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)  # before anything that needs a GPU
    dist.init_process_group(timeout=timedelta(minutes=2))
    total = torch.ones(1, device="cuda")  # no number: the current device
    worker.log(local_rank=local_rank, index=total.device.index)
    dist.all_reduce(total)
    worker.log(total=total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
