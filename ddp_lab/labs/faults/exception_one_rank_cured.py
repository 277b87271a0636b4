"""One rank meets a bad batch; all hear of it and leave out the step together.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.exception_one_rank_cured

Look at: no rank has a record with a loss for step 3, and all go on with step 4.
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
        bad = loss.isnan().int()
        dist.all_reduce(bad)  # how many ranks have a bad batch: the same answer on all
        if bad > 0:
            worker.log(step=step, skipped=True)
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        worker.log(step=step, loss=loss)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
