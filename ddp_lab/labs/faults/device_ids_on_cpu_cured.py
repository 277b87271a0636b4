"""Without `device_ids` DDP works where the model is, on a CPU as on a GPU.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.device_ids_on_cpu_cured

Look at: one record from each rank.
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
    model = DistributedDataParallel(torch.nn.Linear(4, 1))

    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    worker.log(local_rank=local_rank, loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
