"""ZeRO-1: each rank keeps the optimizer's state for its share of the parameters, and sends the others what it updated.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.zero1

Look at `held`, the numbers in this rank's optimizer, beside `adam`, those in plain Adam; at `off`, how far the weights
are from Adam's; and at `sent` in a step: a broadcast for each parameter comes on top of DDP's all-reduce.
"""

import copy
import gc
import os
from collections import Counter

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import data, models, worker
from ddp_lab.meters.collectives import CollectiveMeter

STEPS = 5


def numbers(state):
    """How many numbers an optimizer's state has."""
    return sum(t.numel() for own in state.values() for t in own.values() if torch.is_tensor(t))


def main():
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(0)
    net = models.mlp(hidden=128, layers=3).to(device)
    twin = copy.deepcopy(net)
    zero = ZeroRedundancyOptimizer(net.parameters(), torch.optim.Adam, lr=0.001)
    adam = torch.optim.Adam(twin.parameters(), lr=0.001)
    pairs = [(DistributedDataParallel(net), zero), (DistributedDataParallel(twin), adam)]

    images, labels = (each.to(device) for each in data.digits("train").tensors)
    for step in range(STEPS):
        mine = slice(step * 64 + rank, step * 64 + 64, world_size)
        sent = []
        for model, optimizer in pairs:
            with CollectiveMeter() as meter:
                optimizer.zero_grad()
                cross_entropy(model(images[mine]), labels[mine]).backward()
                optimizer.step()
            sent.append(Counter(row["op"] for row in meter.rows))
        off = max((one - other).abs().max() for one, other in zip(net.parameters(), twin.parameters(), strict=True))
        worker.log(step=step, off=off, sent=sent[0], sent_by_adam=sent[1])

    held, whole = numbers(zero.optim.state), numbers(adam.state)
    print(f"rank {rank} holds {held:,} numbers of {whole:,}; weights differ from Adam's by {off:.1e}")
    zero.consolidate_state_dict(to=0)  # every rank sends its share to rank 0
    gathered = numbers(zero.state_dict()["state"]) if rank == 0 else None  # the others have no whole one
    worker.log(held=held, adam=whole, tensors=len(list(net.parameters())), gathered=gathered)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
