"""Two collectives of one kind and shape, in different order: no error, and losses are added to errors.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.collective_order_silent_cured

Look at the sums: the loss is 1 on rank 0 and 10 on rank 1, the error 2 and 20.
"""

import gc

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()

    meters = {"loss": torch.tensor([10.0**rank]), "error": torch.tensor([2 * 10.0**rank])}
    names = ["loss", "error"] if rank == 0 else ["error", "loss"]  # as the keys of a dict filled on each rank
    for name in sorted(names):
        before = meters[name].clone()
        dist.all_reduce(meters[name])
        worker.log(collective=name, before=before, after=meters[name])

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
