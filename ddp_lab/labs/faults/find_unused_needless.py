"""Options "for overlap" on a model that uses all its parameters: DDP can no longer adapt its buckets.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.find_unused_needless

Look at `ready`: so many of the 12 gradients were computed when each bucket was sent; the others' computing hides it.
And count the all-reduces in a step.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker
from ddp_lab.meters.bucket_sizes import bucket_sizes


class FromTheLast(nn.ModuleList):
    """A model need not use its layers in the order in which they were made."""

    def forward(self, x):
        for layer in reversed(self):
            x = layer(x)
        return x


def main():
    dist.init_process_group()
    net = FromTheLast(nn.Linear(128, 128) for _ in range(6))
    options = {"broadcast_buffers": False, "find_unused_parameters": True}
    model = DistributedDataParallel(net, bucket_cap_mb=0.06, **options)  # MiB: a layer in each
    computed, ready = [], []
    for parameter in net.parameters():
        parameter.register_hook(computed.append)

    def note(state, bucket):
        ready.append(len(computed))
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, note)
    for step in range(4):
        model(torch.ones(8, 128)).sum().backward()
        worker.log(step=step, ready=ready)
        ready.clear()
        computed.clear()
    worker.log(**bucket_sizes(model)._asdict())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
