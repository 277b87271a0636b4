"""`device_ids` stayed in the call, though the model is on the CPU: DDP refuses it.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.device_ids_on_cpu

Look at what the error says it was given.
"""

import gc
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1), device_ids=[local_rank])

    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    worker.log(local_rank=local_rank, loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
