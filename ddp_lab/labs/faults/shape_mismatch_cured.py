"""A tensor is as long as a rank's data make it: the broadcast fills what there is, and no rank gets an error.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.shape_mismatch_cured

Look at the last count.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()

    classes = 3 + rank  # rank 0 has met no sample of the last class
    samples = 10**rank * torch.arange(1, classes + 1)
    labels = torch.arange(classes).repeat_interleave(samples)
    counts = torch.bincount(labels, minlength=4)
    before = counts.clone()
    dist.broadcast(counts, src=0)  # all are to weight the classes as rank 0 does
    worker.log(collective="counts", before=before, after=counts)

    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
