"""Train a small network on handwritten digits in one process. `train_ddp` is the same on many.

    python -m ddp_lab.labs.train_single

Look at the loss as it falls, and at the test accuracy in the last line.
"""

import argparse

import torch
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

    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()), "cpu")
    device = torch.device(kind)

    torch.manual_seed(args.seed)
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


if __name__ == "__main__":
    main()
