"""One rank is late in each step, on purpose: who waits, and where the waiting shows.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.straggler

Look at `backward` on the ranks that are not late: the wait is there, and `seconds` is the same on all. In step 1 it is
in their `forward`, where DDP makes its buckets anew. `--how compute` keeps the late rank at work instead of asleep.
With `--part backward` it is late within its backward, and all backward passes are equally long.
"""

import argparse
import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def compute(seconds, device):
    """As with a longer share of the batch."""
    end, x = time.perf_counter() + seconds, torch.randn(128, 128, device=device)
    while time.perf_counter() < end:
        (x @ x)[0, 0].item()


HOW = {"sleep": lambda seconds, device: time.sleep(seconds), "compute": compute}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow", type=int, default=1, help="the rank that is late; -1: none")
    parser.add_argument("--late", type=float, default=0.2, help="seconds")
    parser.add_argument("--part", choices=["before", "backward"], default="before", help="where it is late")
    parser.add_argument("--how", choices=HOW, default="sleep")
    parser.add_argument("--steps", type=int, default=6)
    args = parser.parse_args()
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if not -1 <= args.slow < world_size:
        parser.error(f"--slow {args.slow}: give a rank from 0 to {world_size - 1}, or -1")
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    model, optimizer = DistributedDataParallel(net), torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(32, 64, device=device)
    for step in range(args.steps):
        dist.barrier()  # all begin together
        times = [time.perf_counter()]
        if rank == args.slow and args.part == "before":
            HOW[args.how](args.late, device)
        times.append(time.perf_counter())
        loss = model(x).square().mean()
        if rank == args.slow and args.part == "backward":
            loss.register_hook(lambda gradient: HOW[args.how](args.late, device))
        loss.item()  # on a GPU: waits until it is done
        times.append(time.perf_counter())
        optimizer.zero_grad()
        loss.backward()
        net[0].bias.grad[0].item()
        times.append(time.perf_counter())
        optimizer.step()
        times.append(time.perf_counter())
        before, forward, backward, update = (end - begin for begin, end in zip(times, times[1:], strict=False))
        parts = {"before": before, "forward": forward, "backward": backward, "optimizer": update}
        worker.log(step=step, **parts, seconds=times[-1] - times[0])
    print(f"rank {rank}: late by {before:.3f} s, backward {backward:.3f} s, in all {times[-1] - times[0]:.3f} s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
