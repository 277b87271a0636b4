"""A forward written in Python, on two threads as DataParallel's, and on two processes as DDP's.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.dp_threads

Look at the speeds: on two idle cores two processes are nearly twice as fast as one thread, two threads are not.
"""

import gc
import os
import threading
import time

import torch
import torch.distributed as dist
from torch import nn

from ddp_lab import worker
from ddp_lab.meters.virtual import VirtualDataParallel

threads = set()  # all threads of a process share it


class InPython(nn.Module):
    def forward(self, x):
        threads.add(threading.current_thread().name)
        rows = []
        for row in x.tolist():  # as a tokenizer, or a tree that is walked: the interpreter works, and not torch
            for _ in range(10_000):
                row = [0.9 * value + 0.1 for value in row]
            rows.append(row)
        return torch.tensor(rows)


def best_of(times, model, batch):
    """[the seconds of the fastest call, the threads that it ran on]."""
    seconds = []
    for _ in range(times):
        threads.clear()
        begin = time.perf_counter()
        model(batch)
        seconds.append(time.perf_counter() - begin)
    return [min(seconds), len(threads)]


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    net, batch = InPython(), torch.zeros(64, 8)
    if rank == 0:
        one, several = best_of(3, net, batch), best_of(3, VirtualDataParallel(net, world_size), batch)
        worker.log(kind="one thread", seconds=one[0], threads=one[1], process=os.getpid())
        worker.log(kind="threads", seconds=several[0], threads=several[1], process=os.getpid())
    dist.all_reduce(torch.zeros(1))  # the others have waited here

    seconds, number = best_of(3, net, batch[rank::world_size])
    worker.log(kind="processes", seconds=seconds, threads=number, process=os.getpid())
    slowest = torch.tensor(seconds)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if rank == 0:
        print(f"{world_size} threads: {one[0] / several[0]:.1f} times as fast as one")
        print(f"{world_size} processes: {one[0] / slowest.item():.1f} times as fast as one")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
