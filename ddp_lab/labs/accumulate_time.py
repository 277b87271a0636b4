"""The time of an effective step with an all-reduce for each micro-batch, and with one for the window.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.accumulate_time

Each time is that of the slowest rank, in the best of several tries. Look at the two times of each window: with one
micro-batch they are the same, and the more there are, the more an all-reduce for each costs.
"""

import contextlib
import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

WINDOWS, TRIES = [1, 2, 4, 8], 8


def main():
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
    net = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)]).to(device)
    model = DistributedDataParallel(net)
    x = torch.ones(8, 512, device=device)
    gradient = sum(p.nbytes for p in net.parameters())

    def seconds(window, each):
        """Of an effective step: the best try's, of its slowest rank."""
        tries = torch.zeros(TRIES, device=device)
        for number in range(TRIES):
            dist.barrier()  # all begin together
            begin = time.perf_counter()
            for i in range(window):
                with contextlib.nullcontext() if each or i + 1 == window else model.no_sync():
                    (model(x).mean() / window).backward()
            net[0].bias.grad[0].item()  # on a GPU: waits until it is done
            tries[number] = time.perf_counter() - begin
            net.zero_grad()
        dist.all_reduce(tries, dist.ReduceOp.MAX)
        return tries.min()

    seconds(1, each=True)  # connections, memory, and the order of the buckets
    for window in WINDOWS:
        times = {"each": seconds(window, each=True), "once": seconds(window, each=False)}
        worker.log(step=window, window=window, bytes=gradient, device=device.type, **times)
    print(f"{window} micro-batches: {1000 * times['each']:.1f} ms, with one all-reduce {1000 * times['once']:.1f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
