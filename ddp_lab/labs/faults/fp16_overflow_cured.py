"""bfloat16 has the range of float32, and fewer digits.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.fp16_overflow_cured

Look at the gradient on both ranks: the mean of 70000 and 1 is 35000.5.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    net = nn.Linear(1, 1, bias=False)
    model = DistributedDataParallel(net)
    # By a name of ours: under its own, torch refuses it where it was built without NCCL, and gloo needs none.
    model.register_comm_hook(None, lambda state, bucket: bf16_compress_hook(state, bucket))

    mine = torch.tensor([70000.0 if dist.get_rank() == 0 else 1.0])
    model(mine).sum().backward()  # of this rank alone, the gradient is `mine`
    worker.log(mine=mine, gradient=net.weight.grad.flatten())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
