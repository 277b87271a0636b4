"""One seed for all ranks: each augments its own images with the very numbers of the others, and drops the same units.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.same_augmentation

Look at the shift of each sample and at the units kept: equal on all ranks, step by step.
"""

import gc

import torch
import torch.distributed as dist
from torch.nn.functional import dropout
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddp_lab import worker

SAMPLES = 12


class Shifted(Dataset):
    """Each image comes with a random shift, drawn anew each time: the augmentation."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, sample):
        return sample, torch.rand(())


def main():
    dist.init_process_group()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))  # rank 0's weights on all ranks
    worker.log(weight=model.module.weight.item())

    dataset = Shifted()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=2, sampler=sampler, num_workers=2)
    for step, (samples, shifts) in enumerate(loader):
        kept = dropout(torch.ones(32)) > 0
        model(shifts[:, None]).sum().backward()
        worker.log(step=step, samples=samples, shifts=shifts, kept=kept.int())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
