"""A ring all-reduce made of sends: every rank sends to its right and receives from its left, a chunk at a time.

    torchrun --standalone --nproc-per-node 4 -m ddp_lab.labs.ring

Rank r hands in 10 ** r everywhere, so the digits of a sum say which ranks are in it. Look at `chunks`: what this rank
has of each part of the tensor, at the start and after each round.
"""

import gc
import os

import torch
import torch.distributed as dist

from ddp_lab import worker


def exchange(mine, to, theirs, source):
    """Send and receive at the same time: if all sent first, nobody would receive."""
    both = [dist.P2POp(dist.isend, mine, to), dist.P2POp(dist.irecv, theirs, source)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def ring(t, after=lambda chunks: None):
    """All-reduce `t`, of one dimension, in place; `after(chunks)` is called after each of the 2 (N - 1) rounds."""
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    chunks = t.tensor_split(size)  # views of t: what changes in them changes in t
    theirs = torch.empty_like(chunks[0])  # the first chunk is the largest
    for step in range(size - 1):  # reduce-scatter: when it ends, each rank has one chunk complete
        mine, here = chunks[(rank - step) % size], chunks[(rank - step - 1) % size]
        exchange(mine, right, theirs[: len(here)], left)
        here += theirs[: len(here)]
        after(chunks)
    for step in range(size - 1):  # all-gather: the complete chunks go round
        exchange(chunks[(rank - step + 1) % size], right, chunks[(rank - step) % size], left)
        after(chunks)


def main():
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    t = torch.full((1200,), 10.0 ** dist.get_rank(), dtype=torch.float64, device=device)
    expected, rounds = t.clone(), iter(range(100))

    def log(chunks):
        worker.log(step=next(rounds), chunks=[chunk[0].item() for chunk in chunks])

    log(t.tensor_split(dist.get_world_size()))
    ring(t, after=log)
    dist.all_reduce(expected)
    worker.log(to_all_reduce=(t - expected).abs().max(), size=t.numel() * t.element_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
