"""Three ways to average gradients: by hand after the backward pass, by DDP, and by DDP with options "for overlap".

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.overlap

Look at a trace: what is sent while a backward pass goes on. Each layer's backward sleeps: it takes time but no core, as
if a GPU were computing. `--backwards` uses the layers from the last to the first: DDP adapts to it in its second step.
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

SECONDS = 0.03  # that a layer's backward takes


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(SECONDS)
        return gradient


class Chain(nn.ModuleList):
    backwards = False

    def forward(self, x):
        for layer in reversed(self) if self.backwards else self:
            x = layer(Sleep.apply(x))
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backwards", action="store_true")
    parser.add_argument("--steps", type=int, default=6, help="of each way")
    args = parser.parse_args()
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(0)
    nets = [Chain(nn.Linear(512, 512) for _ in range(5)).to(device)]
    nets[0].backwards = args.backwards
    nets += [copy.deepcopy(nets[0]), copy.deepcopy(nets[0])]
    models = {"by hand": nets[0], "DDP": DistributedDataParallel(nets[1], bucket_cap_mb=1)}  # MiB: a layer in each
    options = {"broadcast_buffers": False, "find_unused_parameters": True}
    models["DDP with options"] = DistributedDataParallel(nets[2], bucket_cap_mb=1, **options)
    x = torch.ones(4, 512, device=device) * (dist.get_rank() + 1)
    for step in range(args.steps * len(models)):  # in turn: what disturbs one disturbs all
        way = list(models)[step % len(models)]
        dist.barrier()  # all begin together
        begin = time.perf_counter()
        models[way].zero_grad()
        models[way](x).sum().backward()
        for parameter in models[way].parameters() if way == "by hand" else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        total = sum(parameter.grad.double().sum() for parameter in models[way].parameters()).item()
        worker.log(step=step, way=way, seconds=time.perf_counter() - begin, gradients=total)
    print(f"{way}: {1000 * (time.perf_counter() - begin):.0f} ms in the last step")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
