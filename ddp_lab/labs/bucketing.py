"""Sequences of different lengths: what is padded within a batch, and what the ranks wait for each other in a step.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.bucketing

Look at `length`, to which a rank's batch is padded: a step takes as long as that of the rank with the longest.
`--order shared` is the default, `random` and `own` are the others.
"""

import argparse
import gc

import torch
import torch.distributed as dist

from ddp_lab import worker

SAMPLES, BATCH, EPOCH = 96, 4, 0


def random_order(lengths, rank, world_size, chance):
    """Shuffle, then share out, as DistributedSampler does."""
    mine = torch.randperm(SAMPLES, generator=chance)[rank::world_size]
    return mine.split(BATCH)


def own_buckets(lengths, rank, world_size, chance):
    """Each rank sorts its own share, cuts it into batches, and shuffles these for itself."""
    mine = torch.randperm(SAMPLES, generator=chance)[rank::world_size]
    batches = mine[lengths[mine].argsort()].split(BATCH)
    own = torch.Generator().manual_seed(1000 * EPOCH + rank)
    return [batches[place] for place in torch.randperm(len(batches), generator=own)]


def shared_buckets(lengths, rank, world_size, chance):
    """Sort all, cut into the batches of a whole step, shuffle these, and share out each."""
    steps = lengths.argsort().split(BATCH * world_size)
    order = torch.randperm(len(steps), generator=chance)  # the same on all ranks
    return [steps[place][rank::world_size] for place in order]


ORDERS = {"random": random_order, "own": own_buckets, "shared": shared_buckets}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--order", choices=ORDERS, default="shared")
    order = ORDERS[parser.parse_args().order]
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    data = torch.Generator().manual_seed(7)
    lengths = torch.randint(1, 101, (SAMPLES,), generator=data)  # tokens in each sequence
    chance = torch.Generator().manual_seed(EPOCH)  # the same on all ranks, another in each epoch
    for step, batch in enumerate(order(lengths, rank, world_size, chance)):
        longest = lengths[batch].max()
        step_length = longest.clone()
        dist.all_reduce(step_length, dist.ReduceOp.MAX)  # all wait for the longest
        tokens, padding = lengths[batch].sum(), (longest - lengths[batch]).sum()
        waiting = (step_length - longest) * len(batch)
        worker.log(step=step, read=batch, tokens=tokens, padding=padding, waiting=waiting)
        worker.log(step=step, length=longest)
    print(f"{step + 1} steps, the last of length {longest} here, of {step_length} in all")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
