"""One hook with a switch: which of the two it is, is read in each step.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.hook_registered_twice_cured

Look at the error, at its step, and at the dtype of what each step sends.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    net = nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(net)
    state = {"hook": allreduce_hook}
    model.register_comm_hook(state, lambda state, bucket: state["hook"](None, bucket))

    mine = torch.tensor([float(dist.get_rank() + 1)])
    for step in range(4):
        if step == 2:  # the gradients are small by now
            state["hook"] = fp16_compress_hook
        net.zero_grad()
        model(mine).sum().backward()
        worker.log(step=step, gradient=net.weight.grad.flatten())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
