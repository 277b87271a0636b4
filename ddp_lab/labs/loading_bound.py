"""Loading as the bottleneck: images come more slowly than the network takes them.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.loading_bound

Look at `share`, the part of the time that a rank waited for its next batch: without workers, where the loop itself
loads, and with two, which load while the rank computes.
"""

import argparse
import gc
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from ddp_lab import worker

BATCH, WIDTH = 16, 256


class FromAfar(Dataset):
    """Samples from a disk or a network that takes its time."""

    def __init__(self, samples, seconds):
        self.samples, self.seconds = samples, seconds

    def __len__(self):
        return self.samples

    def __getitem__(self, sample):
        time.sleep(self.seconds)
        return torch.full((WIDTH,), float(sample))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--load", type=float, default=0.002, help="seconds for a sample")
    parser.add_argument("--compute", type=float, default=0.02, help="seconds for a batch, at least")
    args = parser.parse_args()
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    model = DistributedDataParallel(nn.Linear(WIDTH, WIDTH).to(device))
    dataset = FromAfar(args.steps * BATCH * dist.get_world_size(), args.load)
    for workers in args.workers:
        loader = DataLoader(dataset, BATCH, sampler=DistributedSampler(dataset), num_workers=workers)
        waits, asked = [], time.perf_counter()
        for step, batch in enumerate(loader):
            got = time.perf_counter()
            waits.append(got - asked)
            if step == 0:
                begin = got
            x = batch.to(device)
            while time.perf_counter() < got + args.compute:
                model.module(x)  # as a larger network would
            model(x).sum().backward()
            model.module.bias.grad[0].item()
            asked = time.perf_counter()
            worker.log(workers=workers, step=step, waited=waits[-1])
        seconds = asked - begin  # from the first batch on, for which workers must start
        share = sum(waits[1:]) / seconds
        print(f"{workers} workers: {waits[0]:.2f} s for the first batch, then waited for data {share:.0%} of the time")
        worker.log(workers=workers, first=waits[0], share=share, seconds=seconds, samples=len(waits) * BATCH)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
