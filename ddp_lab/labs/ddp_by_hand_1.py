"""DDP by hand, 1: after backward() an all-reduce for each gradient.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.ddp_by_hand_1

Beside it torch's DDP trains the same model on the same data, in a group of its own. Look at `gradients_to_ddp`, in each
step: rounding errors of float64.
"""

import copy
import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(rank)  # each rank draws its own weights, and later its own data
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)]
    net = nn.Sequential(*layers).double().to(device)
    net[7][0].weight = net[0][0].weight  # two layers share a weight
    net[1].requires_grad_(False)  # and one is frozen
    ddp = DistributedDataParallel(copy.deepcopy(net), process_group=dist.new_group(group_desc="ddp"))

    for p in net.parameters():
        dist.broadcast(p.detach(), src=0)
    params = [p for p in net.parameters() if p.requires_grad]  # a shared weight is in it once
    twins = [p for p in ddp.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD([*params, *twins], lr=0.01, momentum=0.9)

    for step in range(12):
        x = torch.randn(16, 64, dtype=torch.float64, device=device)
        optimizer.zero_grad()
        start = time.perf_counter()
        (net(x) - x).square().mean(0).sum().backward()
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= world_size
        params[0].grad.sum().item()  # on a GPU: waits until it is done
        middle = time.perf_counter()
        (ddp(x) - x).square().mean(0).sum().backward()
        twins[0].grad.sum().item()
        end = time.perf_counter()
        gap = max((p.grad - twin.grad).abs().max() for p, twin in zip(params, twins, strict=True))
        least = min(p.grad.abs().max() for p in params)
        optimizer.step()
        worker.log(step=step, gradients_to_ddp=gap, least=least, seconds=middle - start, ddp_seconds=end - middle)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
