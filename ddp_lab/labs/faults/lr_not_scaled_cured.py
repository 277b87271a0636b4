"""The learning rate has grown with the batch of an update: the linear scaling rule.

    torchrun --standalone --nproc-per-node 4 -m ddp_lab.labs.faults.lr_not_scaled_cured

Look at the images in an update, at the updates in all, and at the loss on the training images in the end.
"""

import argparse
import gc

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ddp_lab import data, models, worker


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16, help="of one rank")
    parser.add_argument("--lr", type=float, default=0.1, help="suits one process")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1, help="one training for each")
    args = parser.parse_args()

    torch.set_num_threads(1)  # ranks share the cores
    dist.init_process_group()
    world_size = dist.get_world_size()
    train, test = data.digits("train"), data.digits("test")
    for seed in range(args.seeds):
        torch.manual_seed(seed)
        model = DistributedDataParallel(models.mlp())
        lr = args.lr * world_size
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        sampler = DistributedSampler(train, seed=seed)
        loader = DataLoader(train, args.batch_size, sampler=sampler)
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            for images, labels in loader:
                loss = cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        counted = {"updates": args.epochs * len(loader), "effective_batch": args.batch_size * world_size}
        with torch.no_grad():
            loss = cross_entropy(model.module(train[:][0]), train[:][1])
            accuracy = (model.module(test[:][0]).argmax(1) == test[:][1]).float().mean()
        worker.log(step=seed, lr=lr, loss=loss, accuracy=accuracy, **counted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
