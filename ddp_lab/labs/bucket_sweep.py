"""How long a step takes for each bucket_cap_mb: many small buckets, some, or a single one.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.bucket_sweep

Look at `seconds` beside `alone`, the step without all-reduces, and `sending`, one all-reduce of all gradients with
nothing else to do: what is less than their sum was hidden. For a slow link, on which it takes some 5 s at 200 Mbit/s.
"""

import argparse
import copy
import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker
from ddp_lab.meters.bucket_sizes import bucket_sizes

WARM_UP = 3  # steps: in the first there is one bucket, in the second the buckets are made anew


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--caps", nargs="+", default=["0", "0.3", "0.6", "1.2", "25"], help="MiB, or default")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256, help="of a layer: 256 makes gradients of 0.25 MiB")
    parser.add_argument("--batch", type=int, default=512, help="samples of a rank: more takes longer to compute")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    try:
        caps = {cap: None if cap == "default" else float(cap) for cap in args.caps}
    except ValueError:
        parser.error(f"--caps {' '.join(args.caps)}: give MiB, as 0 1 25, or default")
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: give at least 1")
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    net = nn.Sequential(*[nn.Linear(args.width, args.width) for _ in range(args.layers)]).to(device)
    models = {c: DistributedDataParallel(copy.deepcopy(net), bucket_cap_mb=mib) for c, mib in caps.items()}
    x = torch.randn(args.batch, args.width, device=device)
    gradient = torch.zeros(sum(p.numel() for p in net.parameters()), device=device)

    def alone():
        with models[args.caps[0]].no_sync():
            models[args.caps[0]](x).mean().backward()

    kinds = {cap: lambda cap=cap: models[cap](x).mean().backward() for cap in caps}
    kinds |= {"alone": alone, "sending": lambda: dist.all_reduce(gradient)}
    seconds = torch.zeros(WARM_UP + args.rounds, len(kinds), device=device)
    step = 0
    for number in range(len(seconds)):  # a round has a step of each kind: what disturbs one disturbs all
        for place, (kind, work) in enumerate(kinds.items()):
            dist.barrier()  # all begin together
            begin = time.perf_counter()
            work()
            gradient[0].item()  # on a GPU: waits until it is done
            seconds[number, place] = time.perf_counter() - begin
            worker.log(step=step, kind=kind, round=number - WARM_UP, own=seconds[number, place])
            step += 1
        worker.progress(number + 1, len(seconds))

    dist.all_reduce(seconds, dist.ReduceOp.MAX)  # of each step the slowest rank
    median = dict(zip(kinds, seconds[WARM_UP:].median(0).values.tolist(), strict=True))
    for cap, model in models.items():
        buckets, seconds = bucket_sizes(model).rebuilt, median[cap]
        print(f"bucket_cap_mb={cap}: {len(buckets)} buckets, {1000 * seconds:.1f} ms a step")
        worker.log(cap=cap, buckets=buckets, seconds=seconds, alone=median["alone"], sending=median["sending"])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
