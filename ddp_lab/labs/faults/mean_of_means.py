"""Accuracies of batches are averaged as equals, and those of ranks again: a small batch counts as much as a full one.

    torchrun --standalone --nproc-per-node 4 -m ddp_lab.labs.faults.mean_of_means

Look at the samples of each batch, and at the accuracy: 8 of 10 are right.
"""

import gc

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from ddp_lab import worker


def main():
    dist.init_process_group()
    dataset = range(10)
    right = torch.ones(10)  # what the model makes of each sample
    right[8:] = 0  # all right but the last two
    mine = dataset[dist.get_rank() :: dist.get_world_size()]
    sums = torch.zeros(2)
    for step, batch in enumerate(DataLoader(dataset, batch_size=2, sampler=mine)):
        worker.log(step=step, samples=batch)
        sums += torch.tensor([right[batch].mean(), 1])  # accuracies, and batches

    mean = sums[0] / sums[1]
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    worker.log(accuracy=mean)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
