"""Each option of DDP in turn: the collectives, bytes, weights and time that it changes.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.ddp_options

Look at what differs from `plain`: a step's collectives, the bytes of gradients and buckets together, and the buffers of
the other ranks. `off` is how far the weights are from plain DDP's. The times are ratios; on a busy machine they scatter.
"""

import copy
import gc
import os
import time
import warnings
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker
from ddp_lab.meters.collectives import CollectiveMeter

OPTIONS = {
    "plain": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "skip_all_reduce_unused_params": {"find_unused_parameters": True, "skip_all_reduce_unused_params": True},
    "forward_sync_buffers=False": {"forward_sync_buffers": False},
    "broadcast_buffers=False": {"broadcast_buffers": False},
    "batched_grad_copy": {"batched_grad_copy": True},
    "bucket_cap_mb_list": {"bucket_cap_mb_list": [0.1, 10]},
}
STEPS, ROUNDS = 4, 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(256, 256)  # whether it is used is the step's affair
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256)) for _ in range(4)])

    def forward(self, x, spare):
        return self.body(self.spare(x) if spare else x)


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(rank)  # each rank has weights and data of its own: DDP gives all those of rank 0
