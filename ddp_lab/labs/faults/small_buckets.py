"""A bucket for each parameter: as many all-reduces in a step as there are parameters.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.small_buckets

Look at the all-reduces in a step: count them. What each costs by itself, however little it carries, is paid every time.
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
    model = DistributedDataParallel(net, bucket_cap_mb=0)
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
