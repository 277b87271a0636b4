"""The wrapped model averages the gradients: all ranks train one model, on the data of all.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.not_wrapped_cured

Look at the weight on each rank: the same in every step, and at the end between what the ranks' data ask for.
"""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(0)  # all begin with the same weight
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (weight,) = model.parameters()

    torch.manual_seed(rank)  # and each has data of its own
    for step in range(20):
        x = torch.randn(32, 1)
        y = (rank + 1) * x  # rank 0's data ask for 1, rank 1's for 2
        loss = (model(x) - y).square().mean()
        worker.log(step=step, loss=loss, weight=weight.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
