"""Each option of DDP in turn: the collectives, bytes, weights, buffers and time that it changes.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.ddp_options

Look at what differs from `plain`: the collectives of the first step and of the last, the bytes of gradients and buckets
together, and how far the ranks' buffers are apart. `off` is how far the weights are from plain DDP's. `ratios` are of
times in the same round: see all of them, for on a busy machine they scatter.
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
from ddp_lab.meters.bucket_sizes import bucket_sizes
from ddp_lab.meters.collectives import CollectiveMeter

STEPS, ROUNDS, UNUSED = 4, 7, {"find_unused_parameters": True, "bucket_cap_mb": 0}  # a bucket for each parameter
OPTIONS = {
    "plain": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "forward_sync_buffers=False": {"forward_sync_buffers": False},
    "broadcast_buffers=False": {"broadcast_buffers": False},
    "batched_grad_copy": {"batched_grad_copy": True},
    "bucket_cap_mb_list": {"bucket_cap_mb_list": [0.2, 0.5]},
    "a layer unused": UNUSED,
    "a layer unused, skip_all_reduce_unused_params": UNUSED | {"skip_all_reduce_unused_params": True},
}


def main():
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(dist.get_rank())  # each rank has data of its own
    net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)], nn.BatchNorm1d(256)).to(device)
    net[-1].running_mean += dist.get_rank()  # it is seen who gets rank 0's buffers, and when
    x = torch.randn(64, 256, device=device)

    def train(model):
        with CollectiveMeter() as meter:
            model.zero_grad()
            model(x).square().mean().backward()
        for parameter in model.module[:-1].parameters():
            parameter.data -= 0.1 * parameter.grad
        return Counter(f"{row['op']} {row['dtype']}" for row in meter.rows)

    def keep(tensors, bucket):
        tensors.append(bucket.buffer())
        return allreduce_hook(None, bucket)

    def buffers_off(model):
        first = model.module[-1].running_mean.clone()
        dist.broadcast(first, 0)
        return (model.module[-1].running_mean - first).abs().max()

    ddp, found, weights = {}, {}, {}
    for name, options in OPTIONS.items():
        own, seen = copy.deepcopy(net), {}
        if "layer unused" in name:
            own[-1].spare = nn.Linear(256, 256, device=device)  # nobody calls it
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ddp[name] = DistributedDataParallel(own, **options)
        seen["warnings"] = [f"{warning.category.__name__}: {warning.message}" for warning in caught]
        seen["buffers_at_first"] = buffers_off(ddp[name])
        seen["steps"] = [train(ddp[name]) for _ in range(STEPS)]
        seen["buffers"] = buffers_off(ddp[name])
        weights[name] = torch.cat([p.detach().flatten() for p in own[:-1].parameters()])
        found[name] = seen | {"off": (weights[name] - weights["plain"]).abs().max()}

    seconds = torch.zeros(ROUNDS, len(ddp))
    for number in range(ROUNDS):  # all in each round: what disturbs one disturbs all
        for place, model in enumerate(ddp.values()):
            dist.barrier()  # all begin together
            begin = time.perf_counter()
            for _ in range(STEPS):
                train(model)
            model.module[0].bias[0].item()  # on a GPU: waits until it is done
            seconds[number, place] = time.perf_counter() - begin
    ratios = seconds / seconds[:, :1]

    for place, (name, model) in enumerate(ddp.items()):
        tensors = []
        model.register_comm_hook(tensors, keep)
        train(model)
        buckets = bucket_sizes(model)
        held = sum(buckets.rebuilt or buckets.built) - sum(t.nbytes for t in tensors)  # of those that were not sent
        tensors += [p.grad for p in model.parameters() if p.grad is not None]
        held += sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())
        print(f"{name}: {held:,} bytes, {ratios[:, place].median():.2f} times the time of plain")
        worker.log(option=name, bytes=held, ratios=ratios[:, place], **found[name])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
