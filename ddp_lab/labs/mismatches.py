"""What two ranks may do differently in a collective, without torch's checks and with them.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.mismatches

Look at the errors: which mismatch has none, and which has one at DETAIL alone?
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def numbers(rank, count=4):
    return torch.arange(1.0, count + 1) * 10**rank


def a_view_with_gaps(rank, group):
    dist.all_reduce(numbers(rank)[::2], group=group)


def another_op(rank, group):
    dist.all_reduce(numbers(rank), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM, group=group)


def another_tensor_of_that_shape(rank, group):
    meters = {"loss": numbers(rank), "error": numbers(rank)}
    for name in sorted(meters, reverse=rank == 1):
        dist.all_reduce(meters[name], group=group)


def another_dtype(rank, group):
    dist.all_reduce(numbers(rank).to(torch.int32 if rank else torch.float32), group=group)


def another_shape(rank, group):
    dist.all_reduce(numbers(rank, 6).view(3, 2) if rank else numbers(rank, 6).view(2, 3), group=group)


def another_length(rank, group):
    dist.broadcast(numbers(rank, 3 + rank), src=0, group=group)


def another_length_to_add(rank, group):
    dist.all_reduce(numbers(rank, 3 + rank), group=group)


def another_collective(rank, group):
    dist.broadcast(numbers(rank), src=0, group=group) if rank else dist.all_reduce(numbers(rank), group=group)


def another_root(rank, group):
    dist.broadcast(numbers(rank), src=rank, group=group)


SILENT = [a_view_with_gaps, another_op, another_tensor_of_that_shape, another_dtype, another_shape, another_length]
LOUD = [another_collective, another_length_to_add]  # without checks the first hangs, the second may abort a rank


def main():
    dist.init_process_group()
    for level, mismatches in {"OFF": SILENT, "DETAIL": SILENT + LOUD}.items():
        dist.set_debug_level(getattr(dist.DebugLevel, level))  # holds for the groups that are made from now on
        for mismatch in [*mismatches, another_root]:
            group = dist.new_group(timeout=timedelta(seconds=2 if mismatch is another_root else 30))  # one for each
            try:
                error = mismatch(dist.get_rank(), group)  # None
            except RuntimeError as caught:
                error = str(caught)
            worker.log(level=level, mismatch=mismatch.__name__.replace("_", " "), error=error)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
