"""The ranks join the group first.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.not_initialised_cured

Look at the loss: the same on all ranks, since the wrap gave them the same weights.
"""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    loss = model(torch.ones(8, 4)).square().mean()
    loss.backward()
    worker.log(loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
