"""Every rank loads the optimizer's state: then equal gradients lead to equal steps.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.optimizer_loaded_on_one_rank_cured

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
    model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    saved = optimizer.state_dict()
    saved["state"] = {0: {"momentum_buffer": torch.full((1, 1), 2.0)}}  # what an earlier training has left
    optimizer.load_state_dict(saved)  # on every rank, each from the file

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
