"""Rank 0 loads weights before the wrap: DDP, when it is made, sends them to all.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.weights_loaded_on_one_rank_cured

Look at each step: the same gradients and the same weights on all ranks.
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
    saved = {"weight": torch.full((1, 1), 5.0)}  # what an earlier training has left
    net = torch.nn.Linear(1, 1, bias=False)
    if rank == 0:
        net.load_state_dict(saved)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for step in range(5):
        x = torch.randn(8, 1)
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        worker.log(step=step, gradient=net.weight.grad.item(), weight=net.weight.item())
        optimizer.step()

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
