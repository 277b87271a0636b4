"""What a link costs: the time of an all-reduce of 1 KB, 1 MB and 3 MB, best of a few tries.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.link_cost

Look at the smallest, where the time is a floor, and at what the others take more. It is short enough for a slow link;
`cost_all_reduce` goes up to 64 MB.
"""

import gc
import os
import time

import torch
import torch.distributed as dist

from ddp_lab import worker

SIZES = [2**10, 2**20, 3 * 2**20]  # bytes
TRIES = 4


def main():
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
    for size in SIZES:
        numbers = torch.zeros(size // 4, device=device)  # float32
        dist.all_reduce(numbers)  # the first makes connections, which take their time
        seconds = torch.zeros(TRIES, device=device)
        for number in range(TRIES):
            dist.barrier()  # all begin together
            begin = time.perf_counter()
            dist.all_reduce(numbers)
            numbers[0].item()  # on a GPU: waits until it is done
            seconds[number] = time.perf_counter() - begin
        dist.all_reduce(seconds, dist.ReduceOp.MAX)  # of each try the slowest rank
        worker.log(size=size, seconds=seconds.min())
        print(f"{size} bytes: {1000 * seconds.min():.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
