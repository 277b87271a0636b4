"""Two steps of warm-up, and the measured ones are like all that follow.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.measured_first_steps_cured

Look at the buckets of each measured step, and at its collectives: no bucket is made anew any more.
"""

import gc
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

WARM_UP, MEASURED = 2, 2  # steps


def main():
    dist.init_process_group()
    net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
    model = DistributedDataParallel(net, bucket_cap_mb=0.2)  # MiB: a layer in each
    sent, x = [], torch.ones(8, 256)

    def note(state, bucket):
        sent.append(bucket.buffer().nbytes)
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, note)
    for step in range(WARM_UP + MEASURED):
        sent.clear()
        begin = time.perf_counter()
        model(x).sum().backward()
        seconds = time.perf_counter() - begin
        if step >= WARM_UP:
            worker.log(step=step, buckets=sent, seconds=seconds)
        else:
            worker.log(step=step)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
