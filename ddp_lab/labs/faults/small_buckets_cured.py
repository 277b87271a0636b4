"""DDP's own sizes of buckets: one all-reduce carries all gradients of this small model.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.small_buckets_cured

Look at the all-reduces in a step: count them.
"""

import gc
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(20)])
    model = DistributedDataParallel(net)
    x = torch.ones(8, 64)
    for step in range(8):
        dist.barrier()  # all begin together
        begin = time.perf_counter()
        model(x).sum().backward()
        seconds = time.perf_counter() - begin
        worker.log(step=step, seconds=seconds)
    print(f"{1000 * seconds:.2f} ms a step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
