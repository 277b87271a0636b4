"""The ranks choose the op by their own data: no error, some numbers are sums and others maxima.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.reduce_op_mismatch

Look at the numbers, which should all be sums.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()

    numbers = torch.arange(1.0, 5) * 10**rank
    before = numbers.clone()
    op = dist.ReduceOp.SUM if numbers.max() < 10 else dist.ReduceOp.MAX  # on rank 0 the sum, on rank 1 the maximum
    dist.all_reduce(numbers, op)
    worker.log(collective="numbers", before=before, after=numbers)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
