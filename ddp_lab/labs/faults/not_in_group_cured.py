"""A rank is named by its number in the group, where torch wants the one in the whole job.

    torchrun --standalone --nproc-per-node 3 -m ddp_lab.labs.faults.not_in_group_cured

Look at the error, or at what rank 2 gets.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()

    pair = dist.new_group([1, 2])
    worker.log(member=rank in (1, 2))
    if rank in (1, 2):
        numbers = torch.tensor([10.0**rank])
        before = numbers.clone()
        dist.broadcast(numbers, group_src=0, group=pair)  # from the first of the pair
        worker.log(collective="numbers", before=before, after=numbers)

    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
