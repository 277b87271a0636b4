"""Two collectives, called by the ranks in different order: each waits in another one.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.collective_order

Look at where each rank stands.
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    # torch's own limit: it ends the hang of a run by hand. A notebook's clocks are shorter.
    dist.init_process_group(timeout=timedelta(minutes=2))
    rank = dist.get_rank()

    loss, weights = torch.tensor([10.0**rank]), torch.tensor([1.0, 2.0]) * 10**rank
    names = ["loss", "weights"] if rank == 0 else ["weights", "loss"]  # as the keys of a dict filled on each rank
    for name in names:
        if name == "loss":
            dist.all_reduce(loss)
        else:
            dist.broadcast(weights, src=0)
    worker.log(loss=loss, weights=weights)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
