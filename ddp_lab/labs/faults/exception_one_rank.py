"""One rank meets a bad batch and raises; the others wait in backward for a rank that is gone.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.exception_one_rank

Look for the first failure: rank 1's ValueError is the cause, what rank 0 says follows from it.
"""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for step in range(6):
        batch = torch.randn(8, 4)
        if rank == 1 and step == 3:
            batch[0, 0] = float("nan")  # one broken number, in the data of one rank

        loss = model(batch).square().mean()
        if loss.isnan():
            raise ValueError(f"loss is nan in step {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worker.log(step=step, loss=loss)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
