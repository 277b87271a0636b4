"""DDP's buckets as they are: which gradients, how many bytes, in which order, and when each is sent.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.buckets

Look at the first step beside the others, and at `ready`: so many gradients were computed when a bucket was sent.
`--cap 2` is bucket_cap_mb, in MiB, `--caps 1 3` bucket_cap_mb_list. `--backwards` uses the layers from the last to the
first; with `--find-unused` DDP does not adapt to that.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker
from ddp_lab.meters.bucket_sizes import bucket_sizes


class Chain(nn.ModuleList):
    backwards = False

    def forward(self, x):
        for layer in reversed(self) if self.backwards else self:
            x = layer(x).relu()
        return x


def mib(text):
    return None if text == "default" else float(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cap", type=mib, help="MiB, or default")
    parser.add_argument("--caps", type=mib, nargs="+", help="MiB for each bucket, the last also for those that follow")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512, help="of a layer: 512 makes gradients of 1 MiB")
    parser.add_argument("--backwards", action="store_true")
    parser.add_argument("--find-unused", action="store_true")
    args = parser.parse_args()
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    net = Chain(nn.Linear(args.width, args.width) for _ in range(args.layers)).to(device)
    net.backwards = args.backwards
    options = {"bucket_cap_mb": args.cap, "bucket_cap_mb_list": args.caps}
    model = DistributedDataParallel(net, find_unused_parameters=args.find_unused, **options)
    names = {parameter: name for name, parameter in net.named_parameters()}
    ready, sent = [], []
    for parameter in names:
        parameter.register_hook(ready.append)

    def note(state, bucket):
        inside = [names[parameter] for parameter in bucket.parameters()]
        size = {"bucket": bucket.index(), "bytes": bucket.buffer().nbytes, "is_last": bucket.is_last()}
        sent.append(size | {"ready": len(ready), "of": len(names), "holds": inside})
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, note)
    for step in range(4):
        model(torch.ones(4, args.width, device=device)).sum().backward()
        for bucket in sent:
            worker.log(step=step, **bucket)
        print(f"step {step}: " + ", ".join(f"{bucket['bytes']:,} bytes" for bucket in sent))
        sent.clear()
        ready.clear()
    worker.log(**bucket_sizes(model)._asdict())  # what DDP itself says
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
