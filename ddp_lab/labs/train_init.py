"""Join the group, and nothing else: each rank trains a model of its own, alone, on all the images.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.train_init

The first of four steps from `train_single` to `train_ddp`. Look at the last record of each rank: other weights,
another accuracy, and as many images seen as by one process.
"""

import argparse
import gc

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from ddp_lab import data, models, worker


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images in a step, in all")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group()
    rank = dist.get_rank()
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()), "cpu")
    device = torch.device(kind)

    torch.manual_seed(args.seed + rank)  # each rank draws random numbers of its own
    model = models.mlp().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    train = data.digits("train")
    loader = DataLoader(train, args.batch_size, shuffle=True)
    step, steps, seen = 0, args.epochs * len(loader), 0
    for epoch in range(args.epochs):
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
    right = torch.zeros((), device=device)
    with torch.no_grad():
        for images, labels in DataLoader(test, batch_size=256):
            right += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    accuracy = right.item() / len(test)
    print(f"test accuracy {accuracy:.1%} on {device}, after {seen} images")
    weights = sum(p.detach().double().abs().sum().item() for p in model.parameters())
    worker.log(accuracy=accuracy, seen=seen, weights=weights)  # equal sums to the last bit: equal weights
    dist.barrier()  # a rank that left now would break off one that is still joining
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
