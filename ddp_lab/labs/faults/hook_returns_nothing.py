"""A hook without its `return`: torch 2.14 takes nothing for a future, and the process dies of it.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.hook_returns_nothing

Look at how the ranks end: by a signal, without an error of Python's.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def average(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())


def main():
    dist.init_process_group()
    net = nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(net)
    model.register_comm_hook(None, average)

    mine = torch.tensor([float(dist.get_rank() + 1)])
    model(mine).sum().backward()  # of this rank alone, the gradient is `mine`
    worker.log(mine=mine, gradient=net.weight.grad.flatten())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
