"""One rank hands in floats, the other whole numbers of the same size: no error, and their bits are mixed up.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.dtype_mismatch_cured

Look at the sums, and at the dtypes.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()

    scale = 1.0
    numbers = torch.arange(1, 5, dtype=torch.int32) * 10**rank * scale  # whole numbers times a float are floats
    before = numbers.clone()
    dist.all_reduce(numbers)
    worker.log(collective="numbers", before=before, after=numbers, dtype=str(numbers.dtype))

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
