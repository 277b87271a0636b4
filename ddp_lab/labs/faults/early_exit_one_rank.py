"""Each rank decides by itself when to stop: one leaves the loop, the other waits for it in backward.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.early_exit_one_rank

Look at where each rank stands, and at the last step that each has logged.
"""

import gc
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    # torch's own limit: it ends the hang of a run by hand. A notebook's clocks are shorter.
    dist.init_process_group(timeout=timedelta(minutes=2))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for step in range(100):
        x = torch.randn(32, 4)
        y = x.sum(1, keepdim=True) + 0.2 * rank / world_size * torch.randn(32, 1)  # noisier on higher ranks
        loss = (model(x) - y).square().mean()
        worker.log(step=step, loss=loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if loss < 0.01:
            break

    dist.barrier()  # all are to be here before one saves the model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
