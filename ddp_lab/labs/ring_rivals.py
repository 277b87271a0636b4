"""Two other ways from sends to an all-reduce: everything through rank 0, and doubling.

    torchrun --standalone --nproc-per-node 4 -m ddp_lab.labs.ring_rivals

This one doubles; `--way through_rank_0` is the other. Rank r hands in 10 ** r, so the digits of a sum say which ranks
are in it. Look at `chunks`, as in the lab `ring`: here the whole tensor is one chunk.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist

from ddp_lab import worker
from ddp_lab.labs.ring import exchange


def through_rank_0(t, after=lambda chunks: None):
    """Rank 0 receives all and adds, then it sends the sum to all: 2 (N - 1) messages, one after the other."""
    theirs, others = torch.empty_like(t), range(1, dist.get_world_size())
    if dist.get_rank() == 0:
        for other in others:
            dist.recv(theirs, other)
            t += theirs
        for other in others:
            dist.send(t, other)
    else:
        dist.send(t, 0)
        dist.recv(t, 0)
    after([t])


def doubling(t, after=lambda chunks: None):
    """Pairs exchange all that they have, then pairs of pairs: log2(N) rounds. ValueError unless N is 2, 4, 8, ..."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size & (size - 1):
        raise ValueError(f"doubling takes 2, 4, 8, ... ranks, not {size}")
    theirs, distance = torch.empty_like(t), 1
    while distance < size:
        partner = rank ^ distance  # the rank that differs in this one binary digit
        exchange(t, partner, theirs, partner)
        t += theirs
        after([t])
        distance *= 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=["through_rank_0", "doubling"], default="doubling")
    way = {"through_rank_0": through_rank_0, "doubling": doubling}[parser.parse_args().way]
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    t = torch.full((1200,), 10.0 ** dist.get_rank(), dtype=torch.float64, device=device)
    expected, rounds = t.clone(), iter(range(100))

    def log(chunks):
        worker.log(step=next(rounds), chunks=[chunk[0].item() for chunk in chunks])

    log([t])
    way(t, after=log)
    dist.all_reduce(expected)
    worker.log(to_all_reduce=(t - expected).abs().max(), size=t.numel() * t.element_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
