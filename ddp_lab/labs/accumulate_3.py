"""Gradient accumulation: `accumulate_2`, with a mean over the window in place of a sum.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.accumulate_3

Look at the weights after the first step: one process with a batch for a window has the same.
"""

import argparse
import contextlib
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from ddp_lab import data, models, worker

MODELS = {
    "mlp": lambda: models.mlp(hidden=16),
    "layernorm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.LayerNorm(16), nn.Linear(16, 10)),
    "batchnorm": models.cnn,
    "dropout": lambda: nn.Sequential(nn.Dropout(0.1), models.mlp(hidden=16)),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="mlp")
    parser.add_argument("--micro-batch", type=int, default=8, help="images of a rank in one forward")
    parser.add_argument("--window", type=int, default=4, help="micro-batches in an effective step")
    args = parser.parse_args()
    dist.init_process_group()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(dist.get_rank())  # the ranks begin apart: the wrap makes them equal
    model = DistributedDataParallel(MODELS[args.model]().double().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    train = Subset(data.digits("train"), range(160))
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.micro_batch, sampler=sampler)
    step = 0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for i, (images, labels) in enumerate(loader):
            closing = (i + 1) % args.window == 0
            with contextlib.nullcontext() if closing else model.no_sync():
                loss = cross_entropy(model(images.double().to(device)), labels.to(device))
                (loss / args.window).backward()
            if closing:
                optimizer.step()
                optimizer.zero_grad()
                weights = torch.cat([p.detach().flatten() for p in model.parameters()])
                worker.log(step=step, epoch=epoch, loss=loss, weights=weights)
                step += 1
    print(f"{step} effective steps, with {len(loader)} micro-batches in each of 2 epochs")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
