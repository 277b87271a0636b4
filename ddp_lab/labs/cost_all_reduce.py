"""What an all-reduce costs: its time from 1 KB to 64 MB, and 1 MB in one piece or in 256.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.cost_all_reduce

Each time is that of the slowest rank, in the best of several tries. Look at the first sizes, which take about the same
time, and at the last, where the time grows with the bytes.
"""

import gc
import os
import time

import torch
import torch.distributed as dist

from ddp_lab import worker

KB, MB = 2**10, 2**20
SIZES = [KB, 4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB, 64 * MB]  # bytes


def best(tensors, tries):
    """Seconds for an all-reduce of each of these tensors, one after the other."""
    seconds = torch.zeros(tries, device=tensors[0].device)
    for number in range(tries):
        dist.barrier()  # all begin together
        begin = time.perf_counter()
        for tensor in tensors:
            dist.all_reduce(tensor)
        tensors[-1][0].item()  # on a GPU: waits until it is done
        seconds[number] = time.perf_counter() - begin
    dist.all_reduce(seconds, dist.ReduceOp.MAX)  # of each try the slowest rank
    return seconds.min()


def main():
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    dist.all_reduce(torch.zeros(1, device=device))  # the first collective makes connections, which take their time
    for step, size in enumerate(SIZES):
        t = torch.zeros(size // 4, device=device)  # float32; a sum of zeros grows in no try
        worker.log(step=step, size=size, seconds=best([t], tries=25 if size <= MB else 6))
        worker.progress(step + 1, len(SIZES))
    megabyte = torch.zeros(MB // 4, device=device)
    worker.log(in_one=best([megabyte], tries=25), in_256=best(megabyte.split(KB), tries=4))  # of 4 KB each
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
