"""A collective under `if rank == 0`: rank 0 waits in it, the others wait elsewhere, for ever.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.rank0_only_collective

Look at where each rank stands: in different collectives, each waiting for the other.
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def evaluate(right, seen):
    """The accuracy over the images of all ranks."""
    counts = torch.tensor([right, seen])
    dist.all_reduce(counts)
    return counts[0].item() / counts[1].item()


def main():
    # torch's own limit: it ends the hang of a run by hand. A notebook's clocks are shorter.
    dist.init_process_group(timeout=timedelta(minutes=2))
    rank = dist.get_rank()

    right, seen = 90 + rank, 100  # what this rank has counted on its own images
    worker.log(right=right, seen=seen)
    if rank == 0:  # "one rank is enough to report it"
        accuracy = evaluate(right, seen)
        worker.log(accuracy=accuracy)
    dist.barrier()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
