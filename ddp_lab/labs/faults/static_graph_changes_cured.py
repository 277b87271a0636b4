"""Where the graph changes, `find_unused_parameters=True` looks at it in each step.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.static_graph_changes_cured

Look at the gradients, those of the second head from the third step on, and at what is sent: count the all-reduces.
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1, bias=False)
        self.second = nn.Linear(4, 1, bias=False)

    def forward(self, x, step):
        return self.head(x) + self.second(x) if step >= 2 else self.head(x)


def main():
    dist.init_process_group()
    net = TwoHeads()
    model = DistributedDataParallel(net, find_unused_parameters=True)
    x = torch.full((1, 4), dist.get_rank() + 1.0)  # the mean of the ranks' gradients is 1.5
    for step in range(4):
        net.zero_grad()
        model(x, step).sum().backward()
        used = [parameter for parameter in net.parameters() if parameter.grad is not None]
        worker.log(step=step, gradients=[parameter.grad.flatten()[0].item() for parameter in used])
        dist.barrier()  # both have logged it before one of them can fail
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
