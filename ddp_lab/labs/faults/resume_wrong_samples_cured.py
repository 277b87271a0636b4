"""A training that was stopped goes on in its epoch, behind the batches that it has read.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.resume_wrong_samples_cured

Look at how often each sample is read in the two epochs: twice.
"""

import gc
from itertools import islice

import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import worker

SAMPLES, EPOCHS = 12, 2


def train(start, stop):
    """From so many steps to so many, as a process that has been started again would do it."""
    sampler = DistributedSampler(range(SAMPLES))
    loader = DataLoader(range(SAMPLES), batch_size=1, sampler=sampler)
    done = start
    for epoch in range(start // len(loader), EPOCHS):
        sampler.set_epoch(epoch)
        for batch in islice(loader, done % len(loader), None):
            if done == stop:
                return
            worker.log(epoch=epoch, step=done, samples=batch)
            done += 1


def main():
    dist.init_process_group()
    steps = EPOCHS * len(DistributedSampler(range(SAMPLES)))
    stopped = steps * 3 // 4  # in the middle of the second epoch
    train(0, stopped)  # what the checkpoint says: the weights, and so many steps are done
    train(stopped, steps)
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
