"""DataParallel stayed in a script that torchrun now starts: each rank trains a model of its own.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.dataparallel_kept

Look at the weights of the ranks. (With GPUs each rank would drive all of them.)
"""

import gc
import os

import torch
import torch.distributed as dist
from torch import nn

from ddp_lab import worker


def main():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # on the CPU, where DataParallel passes each call on
    dist.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Linear(1, 1, bias=False)
    model = nn.DataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for step in range(8):
        loss = (model(torch.ones(2, 1)) - (rank + 1)).square().mean()  # rank 0's data ask for 1, rank 1's for 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worker.log(step=step, weight=net.weight.item())
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
