"""Ranks with unequal numbers of batches, and six ways to go on: each is paid with samples, or with collectives.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.uneven

Look at the samples and the gradients of the last steps. `--way join` is the default, `--way fewest` another. Each rank
has a file of its own, of 4, 8, 12 ... samples.
"""

import argparse
import gc
from contextlib import nullcontext
from itertools import cycle, islice

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker

WAYS = ["join", "join_own_mean", "fewest", "most", "ask", "deal"]


def while_all_have_one(batches):
    """The batches up to the last that every rank has: for data of unknown length."""
    batches = iter(batches)
    while True:
        batch = next(batches, None)
        all_have = torch.tensor(int(batch is not None))
        dist.all_reduce(all_have, dist.ReduceOp.MIN)
        if not all_have:
            return
        yield batch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, default="join")
    way = parser.parse_args().way
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    weight = next(model.parameters())

    ends = [2 * r * (r + 1) for r in range(world_size + 1)]  # a rank's samples: up to its end
    batches = DataLoader(range(ends[rank], ends[rank + 1]), batch_size=2)
    together = nullcontext()
    if way == "join":
        together = Join([model])
    if way == "join_own_mean":
        # the mean over the ranks that still have data
        together = Join([model], divide_by_initial_world_size=False)
    if way in ("fewest", "most"):
        steps = torch.tensor(len(batches))
        dist.all_reduce(steps, dist.ReduceOp.MIN if way == "fewest" else dist.ReduceOp.MAX)
        batches = islice(cycle(batches), steps.item())
    if way == "ask":
        batches = while_all_have_one(batches)
    if way == "deal":  # every rank can read every file
        sampler = DistributedSampler(range(ends[-1]), shuffle=False, drop_last=True)
        batches = DataLoader(range(ends[-1]), batch_size=2, sampler=sampler)

    with together:
        for step, batch in enumerate(batches):
            model.zero_grad()
            model(torch.ones(len(batch), 1)).mean().backward()  # each rank's own gradient is 1
            worker.log(step=step, samples=batch, gradient=weight.grad.item())
    dist.barrier()  # leave together
    print(f"{step + 1} steps, the last gradient {weight.grad.item():.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
