"""Stop in the middle of an epoch and go on, on another number of ranks if need be: every sample is read once.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.resumable

Look at the samples of two runs together: one with `--steps 3`, and one on three ranks with `--read 6`. With
`--skip batches --before 3`, as loops often do it, the second misses some.
"""

import argparse
import gc
from itertools import islice

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, Sampler

from ddp_lab import worker

SAMPLES, EPOCH = 12, 1


class Rest(Sampler):
    """What is left of an epoch, once all ranks together have read so many samples."""

    def __init__(self, samples, epoch, read):
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(epoch)).tolist()
        # shared out anew; where the rest does not divide, some ranks have one more: pad it, or `Join`
        self.mine = order[read + dist.get_rank() :: dist.get_world_size()]

    def __iter__(self):
        return iter(self.mine)

    def __len__(self):
        return len(self.mine)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--read", type=int, default=0, help="samples read before, on all ranks")
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--skip", choices=["samples", "batches"], default="samples")
    parser.add_argument("--before", type=int, default=0, help="batches before, on each rank")
    args = parser.parse_args()
    dist.init_process_group()

    if args.skip == "samples":
        rest = Rest(SAMPLES, EPOCH, args.read)
        batches = DataLoader(range(SAMPLES), batch_size=1, sampler=rest)
    else:
        sampler = DistributedSampler(range(SAMPLES))
        sampler.set_epoch(EPOCH)
        loader = DataLoader(range(SAMPLES), batch_size=1, sampler=sampler)
        batches = islice(loader, args.before, None)

    mine = torch.tensor(0)
    for step, batch in enumerate(islice(batches, args.steps)):
        mine += len(batch)
        worker.log(epoch=EPOCH, step=step, samples=batch)  # the steps of this process
    dist.all_reduce(mine)  # counted, not multiplied: some ranks may have one more
    read = args.read + mine.item()
    worker.log(read=read)  # into the checkpoint, with the epoch: all that is needed to go on
    print(f"{read} of {SAMPLES} samples are read")
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
