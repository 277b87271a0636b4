"""What find_unused_parameters and static_graph cost in a step of a network of many small layers.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.find_unused_cost

Look at the ratios of all rounds, not at one: 1 is the time of plain DDP, and on a busy machine they scatter.
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

OPTIONS = {"plain": {}, "find_unused": {"find_unused_parameters": True}, "static_graph": {"static_graph": True}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="in a round, for each")
    args = parser.parse_args()
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    net = nn.Sequential(*[nn.Linear(16, 16) for _ in range(args.layers)]).to(device)
    models = {name: DistributedDataParallel(copy.deepcopy(net), **given) for name, given in OPTIONS.items()}
    x = torch.ones(8, 16, device=device)

    def steps(model, number):
        for _ in range(number):
            model(x).sum().backward()
        next(model.parameters()).grad[0, 0].item()  # on a GPU: waits until it is done

    for model in models.values():
        steps(model, 3)  # the buckets, and with static_graph what is used, are settled in the first ones
    ratios = torch.zeros(args.rounds, len(models))
    for number in range(args.rounds):  # all in each round: what disturbs one disturbs all
        seconds = torch.zeros(len(models), device=device)
        for place, model in enumerate(models.values()):
            dist.barrier()  # all begin together
            begin = time.perf_counter()
            steps(model, args.steps)
            seconds[place] = time.perf_counter() - begin
        dist.all_reduce(seconds, dist.ReduceOp.MAX)  # the slowest rank
        ratios[number] = seconds / seconds[0]
        worker.log(step=number, **dict(zip(models, (seconds / args.steps).tolist(), strict=True)))

    for place, name in enumerate(models):
        one = ratios[:, place]
        print(f"{name}: {one.median():.2f} times the step of plain DDP, from {one.min():.2f} to {one.max():.2f}")
        worker.log(option=name, median=one.median(), least=one.min(), most=one.max())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
