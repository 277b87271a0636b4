"""Sequences differ in length, and each loss is a mean over its own tokens: those of short ones weigh more.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.mean_of_means_in_training

Look at the shares: the element of the gradient that belongs to a token is what it weighs in the step. (The number of
ranks is to divide 8.)
"""

import contextlib
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

LENGTHS = [1, 3, 2, 5, 1, 2, 2, 4]  # tokens in each sequence of the step, 20 in all


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    sequences = torch.eye(sum(LENGTHS)).split(LENGTHS)  # each token moves a weight of its own
    net = nn.Linear(sum(LENGTHS), 1, bias=False)
    model = DistributedDataParallel(net)

    window = sequences[rank::world_size]  # micro-batches of one sequence each
    for i, sequence in enumerate(window):
        closing = i + 1 == len(window)
        with contextlib.nullcontext() if closing else model.no_sync():
            loss = model(sequence).mean()
            (loss / len(window)).backward()
    worker.log(step=0, lengths=[len(sequence) for sequence in window], shares=net.weight.grad[0])

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
