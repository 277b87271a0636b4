"""Samples per second on as many ranks as there are, and the parts of a step from which more can be projected.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.scaling

Run it on 1, 2 and 4 ranks. `--kind strong`: the batch is shared out, all ranks do the work of one. `--kind weak`: each
rank has a whole one. Look at `samples_per_second`, and at `compute`, a step without all-reduces, beside `all_reduce`.
"""

import argparse
import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

WARM_UP = 3  # rounds: in the first steps DDP makes its buckets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["strong", "weak"], default="strong")
    parser.add_argument("--batch", type=int, default=512, help="samples: of all ranks together, or of each")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="of a layer: 256 makes gradients of 0.25 MiB")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of a rank: as many however many ranks there are")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dist.init_process_group()
    world_size, share = dist.get_world_size(), args.batch
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))
    if args.kind == "strong":
        share, left = divmod(args.batch, world_size)
        if left or not share:
            parser.error(f"--batch {args.batch}: give a multiple of {world_size}, the number of ranks")

    net = nn.Sequential(*[nn.Linear(args.width, args.width) for _ in range(args.layers)]).to(device)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x = torch.randn(share, args.width, device=device)
    gradient = torch.zeros(sum(p.numel() for p in net.parameters()), device=device)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    def compute():
        with model.no_sync():
            step()

    parts = {"seconds": step, "compute": compute, "all_reduce": lambda: dist.all_reduce(gradient)}
    seconds = torch.zeros(WARM_UP + args.rounds, len(parts), device=device)
    for number in range(len(seconds)):  # all in each round: what disturbs one disturbs all
        for place, part in enumerate(parts.values()):
            dist.barrier()  # all begin together
            begin = time.perf_counter()
            part()
            gradient[0].item(), net[0].bias[0].item()  # on a GPU: waits until it is done
            seconds[number, place] = time.perf_counter() - begin
    worker.log(own=seconds[WARM_UP:].median(0).values)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)  # of each step the slowest rank
    median = dict(zip(parts, seconds[WARM_UP:].median(0).values.tolist(), strict=True))
    rate = share * world_size / median["seconds"]
    print(f"{args.kind}, {share} samples on each of {world_size}: {rate:.0f} samples per second")
    size = {"kind": args.kind, "ranks": world_size, "share": share, "bytes": gradient.nbytes}
    worker.log(samples_per_second=rate, threads=args.threads, **size, **median)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
