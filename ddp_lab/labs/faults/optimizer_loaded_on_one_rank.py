"""Rank 0 alone loads the optimizer's state: DDP sends the model's weights, and knows nothing of the optimizer's.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.optimizer_loaded_on_one_rank

Look at each step: equal weights at first and equal gradients always, and the weights come apart all the same. No error.
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
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    saved = optimizer.state_dict()
    saved["state"] = {0: {"momentum_buffer": torch.full((1, 1), 2.0)}}  # what an earlier training has left
    if rank == 0:
        optimizer.load_state_dict(saved)

    (weight,) = model.parameters()
    for step in range(5):
        x = torch.randn(8, 1)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        worker.log(step=step, gradient=weight.grad.item(), weight=weight.item())
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
