"""Validation with a DistributedSampler: to make the shares equal it repeats the first samples, and they count again.

    torchrun --standalone --nproc-per-node 4 -m ddp_lab.labs.faults.eval_padding

Look at how many samples were counted, and at the accuracy: 9 of 10 are right.
"""

import gc

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker


def main():
    dist.init_process_group()
    dataset = range(10)
    right = torch.ones(10)  # what the model makes of each sample
    right[0] = 0  # all right but the first
    mine = DistributedSampler(dataset, shuffle=False)
    sums = torch.zeros(2)  # hits, and samples
    for step, batch in enumerate(DataLoader(dataset, batch_size=2, sampler=mine)):
        worker.log(step=step, samples=batch)
        sums += torch.tensor([right[batch].sum(), len(batch)])

    dist.all_reduce(sums)
    hits, counted = sums.tolist()
    worker.log(counted=int(counted), accuracy=hits / counted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
