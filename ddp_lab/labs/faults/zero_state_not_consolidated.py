"""A checkpoint under ZeRO: rank 0 asks for the optimizer's state, of which each rank has a part.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.zero_state_not_consolidated

Look at the error, and at `held`: the numbers that each rank's optimizer has. All of them together are `saved`.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def numbers(state):
    """How many numbers an optimizer's state has."""
    return sum(t.numel() for own in state.values() for t in own.values() if torch.is_tensor(t))


def main():
    dist.init_process_group()
    net = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    model = DistributedDataParallel(net)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.001)
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    worker.log(held=numbers(optimizer.optim.state))
    dist.barrier()  # both have logged it before one of them can fail

    if dist.get_rank() == 0:
        checkpoint = {"model": net.state_dict(), "optimizer": optimizer.state_dict()}
        worker.log(saved=numbers(checkpoint["optimizer"]["state"]))
    dist.barrier()  # the file is there
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
