"""A column of a table is all-reduced in place: no error, and other numbers of the table are changed.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.strided_collective_cured

Look at the tables, row by row: 1 and 3 are to become sums, 2 and 4 to stay.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()

    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * 10**rank
    before = table.clone()
    column = table[:, 0].contiguous()  # a copy, in one piece
    dist.all_reduce(column)
    table[:, 0] = column
    worker.log(collective="first column", before=before.flatten(), after=table.flatten())

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
