"""The groups within which gradients go on being averaged are made beforehand, by all ranks, and named.

    torchrun --standalone --nproc-per-node 4 -m ddp_lab.labs.faults.post_local_sgd_no_subgroup_cured

Look at the gradient: the mean of all four ranks, and from step 2 on that of each two.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    net = nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(net)
    local, _ = dist.new_subgroups(group_size=2)
    state = PostLocalSGDState(process_group=None, subgroup=local, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook)

    x = torch.tensor([float(dist.get_rank() + 1)])
    for step in range(4):
        net.zero_grad()
        model(x).sum().backward()  # of this rank alone, the gradient is x
        worker.log(step=step, gradient=net.weight.grad.flatten())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
