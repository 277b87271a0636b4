"""Train a small network on handwritten digits on several ranks: `train_single` with four changes.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.train_ddp

The changes: join the group, take a device of one's own, wrap the model, share out the images. Look at: the
loss of each rank is its own, from its own images; the test accuracy is the same on all.
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from ddp_lab import data, models, worker


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images in a step, in all")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    device = torch.device(kind, int(os.environ["LOCAL_RANK"]))

    torch.manual_seed(args.seed + rank)  # each rank draws random numbers of its own
    model = DistributedDataParallel(models.mlp().to(device))  # averages the gradients in backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    train = data.digits("train")
    sampler = DistributedSampler(train, seed=args.seed)  # each rank its own share of every epoch
    loader = DataLoader(train, args.batch_size // world_size, sampler=sampler)
    step, steps, seen = 0, args.epochs * len(loader), 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # another order in each epoch
        for images, labels in loader:
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            seen += len(images)
            if step % 10 == 0:
                worker.log(epoch=epoch, step=step, loss=loss)
            worker.progress(step, steps)

    test = data.digits("test")
    mine = Subset(test, range(rank, len(test), world_size))  # no image left out, none twice
    right = torch.zeros((), device=device)
    with torch.no_grad():
        for images, labels in DataLoader(mine, batch_size=256):
            right += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    dist.all_reduce(right)
    accuracy = right.item() / len(test)
    print(f"test accuracy {accuracy:.1%} on {device}, after {seen} images")
    weights = sum(p.detach().double().abs().sum().item() for p in model.parameters())
    worker.log(accuracy=accuracy, seen=seen, weights=weights)  # equal sums to the last bit: equal weights
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
