"""Ranks with unequal numbers of batches, and six ways to go on: each is paid with samples, or with collectives.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.uneven

Look at the samples and the gradients of the last steps. Each rank has a file of its own, of 4, 8, 12 ... samples.
`--way join`, `join_own_mean`, `fewest`, `most` (shorter files from the front again), `ask` (before each step), `deal`.
"""

import argparse
import gc
from contextlib import nullcontext
from itertools import islice

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
        all_have = torch.tensor(int(batch is not None))  # on this rank's GPU, if the group has only those
        dist.all_reduce(all_have, dist.ReduceOp.MIN)
        if not all_have:
            return
        yield batch


def again(batches):
    """The batches, and from the front again, in an order drawn anew if they are shuffled."""
    while True:  # itertools.cycle would repeat the batches that it keeps
        yield from batches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, default="join")
    way = parser.parse_args().way
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    weight = next(model.parameters())

    files = [4 * (r + 1) for r in range(world_size)]  # samples in the file of each rank
    begin = sum(files[:rank])
    batches = DataLoader(range(begin, begin + files[rank]), batch_size=2)
    together = nullcontext()
    if way in ("join", "join_own_mean"):  # divided by all ranks, or by those that still have data
        together = Join([model], divide_by_initial_world_size=way == "join")
    if way in ("fewest", "most"):  # agreed on, once, before the loop
        steps = torch.tensor(len(batches))
        dist.all_reduce(steps, dist.ReduceOp.MIN if way == "fewest" else dist.ReduceOp.MAX)
        batches = islice(again(batches), steps.item())
    if way == "ask":
        batches = while_all_have_one(batches)
    if way == "deal":  # every rank can read every file
        sampler = DistributedSampler(range(sum(files)), shuffle=False, drop_last=True)
        batches = DataLoader(range(sum(files)), batch_size=2, sampler=sampler)

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
