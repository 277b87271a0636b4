"""A communication hook: DDP hands it each bucket of gradients, and it gives back a future of their mean.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.hook_by_hand

Look at the order in which buckets come and are answered, at the threads, and at `off`: how far the gradients are from
those of a model without a hook. `--bucket-cap-mb 1` leaves one bucket, 0 makes one for each parameter.
"""

import argparse
import copy
import gc
import os
import threading

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import data, models, worker


def average(calls, bucket):
    """What DDP does by itself, written out. The first argument is whatever was registered with the hook: here a list.

    DDP passes both by their places, and asks, when the hook is registered, that one has the name `bucket`.
    """
    call = {"bucket": bucket.index(), "numel": bucket.buffer().numel(), "is_last": bucket.is_last()}
    calls.append(call | {"event": "in", "thread": threading.current_thread().name})

    work = dist.all_reduce(bucket.buffer(), async_op=True)  # does not wait: backward goes on

    def divide(future):  # called once the sum is there: on a thread of gloo's, or at once if it is there already
        calls.append(call | {"event": "out", "thread": threading.current_thread().name})
        return future.value()[0].div_(dist.get_world_size())  # with a hook DDP does not divide

    return work.get_future().then(divide)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bucket-cap-mb", type=float, default=0.001, help="a bucket is full when it exceeds it")
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    net = models.mlp().to(device)
    twin = copy.deepcopy(net)
    ours, plain = (DistributedDataParallel(each, bucket_cap_mb=args.bucket_cap_mb) for each in (net, twin))
    twin.load_state_dict(net.state_dict())
    calls = []
    ours.register_comm_hook(calls, average)

    images, labels = (each.to(device) for each in data.digits("train").tensors)
    for step in range(args.steps):
        mine = slice(step * 64 + rank, step * 64 + 64, world_size)
        for model in (ours, plain):
            model.zero_grad()
            cross_entropy(model(images[mine]), labels[mine]).backward()  # ends when all futures have
        pairs = zip(net.parameters(), twin.parameters(), strict=True)
        off = max((one.grad - other.grad).abs().max() for one, other in pairs)
        for order, call in enumerate(calls):
            worker.log(step=step, order=order, **call)
        worker.log(step=step, off=off)
        calls.clear()
    print(f"the gradients differ from DDP's own by {off:.1e}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
