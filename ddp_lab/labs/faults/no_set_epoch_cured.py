"""`set_epoch` gives every epoch an order of its own.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.no_set_epoch_cured

Look at the samples of a rank in its three epochs.
"""

import gc

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker


def main():
    dist.init_process_group()
    dataset = range(12)
    sampler = DistributedSampler(dataset)  # it shuffles, unless told not to
    loader = DataLoader(dataset, batch_size=2, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            worker.log(epoch=epoch, step=step, samples=batch)

    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
