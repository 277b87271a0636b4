"""How long an all-reduce takes in each way, from small tensors to large ones.

    torchrun --standalone --nproc-per-node 4 -m ddp_lab.labs.ring_times

Each time is that of the slowest rank, in the best of several tries. `one_round` is what the ring is made of: all send
to their right and receive from their left. Look at which way is the fastest: it changes with the size.
"""

import gc
import os
import time

import torch
import torch.distributed as dist

from ddp_lab import worker
from ddp_lab.labs.ring import exchange, ring
from ddp_lab.labs.ring_rivals import doubling, through_rank_0

SIZES = [2**power for power in range(10, 25, 2)]  # bytes: 1 KiB to 16 MiB


def one_round(t):
    rank, size = dist.get_rank(), dist.get_world_size()
    exchange(t, (rank + 1) % size, torch.empty_like(t), (rank - 1) % size)


WAYS = [one_round, through_rank_0, ring, doubling, dist.all_reduce]


def main():
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    for step, size in enumerate(SIZES):
        t = torch.zeros(size // 4, device=device)  # float32; a sum of zeros grows in no try
        tries = 15 if size < 2**20 else 5
        seconds = torch.zeros(tries, len(WAYS), device=device)
        for number in range(tries):
            for column, way in enumerate(WAYS):
                dist.barrier()  # all begin together
                begin = time.perf_counter()
                way(t)
                t[0].item()  # on a GPU: waits until it is done
                seconds[number, column] = time.perf_counter() - begin
        dist.all_reduce(seconds, dist.ReduceOp.MAX)  # of each try the slowest rank
        best = seconds.min(dim=0).values
        worker.log(step=step, size=size, **{way.__name__: t for way, t in zip(WAYS, best.tolist(), strict=True)})
        worker.progress(step + 1, len(SIZES))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
