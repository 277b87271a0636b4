"""Each rank computes with as many threads as the machine has cores, as if it were alone on it.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.threads_oversubscribed

Look at the milliseconds, beside those of the cure. (How many times slower it is depends on the machine.)
"""

import gc
import os
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group(timeout=timedelta(minutes=2))
    cores, ranks = os.cpu_count(), int(os.environ["LOCAL_WORLD_SIZE"])
    threads = cores
    torch.set_num_threads(threads)

    x = torch.rand(128, 128) / 64
    seconds = []
    for _ in range(9):
        dist.barrier()  # all compute at the same time
        began = time.perf_counter()
        y = x
        for _ in range(50):
            y = torch.tanh(x @ y)  # small layers, as in the labs
        seconds.append(time.perf_counter() - began)
    ms = 1000 * statistics.median(seconds)
    print(f"{ranks} ranks × {threads} threads on {cores} cores: {ms:.1f} ms")
    worker.log(ranks=ranks, threads=torch.get_num_threads(), cores=cores, ms=ms)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
