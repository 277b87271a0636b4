"""The words are sorted before they are numbered: one order, and one table, on all ranks.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.hash_order_cured

Look at the numbers of the words: the same on all ranks, and one row is trained for a word.
"""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

TEXT = "a rank reads words of its own and all ranks keep one table of the words in common"


def main():
    dist.init_process_group()
    words = sorted(set(TEXT.split()))
    number = {word: row for row, word in enumerate(words)}

    table = torch.nn.Embedding(len(number), 1)
    torch.nn.init.zeros_(table.weight)
    model = DistributedDataParallel(table)
    worker.log(words=sorted(words), numbers=[number[word] for word in sorted(words)])
    trained = []  # for each word how many rows
    for word in sorted(number):
        model.zero_grad()
        model(torch.tensor([number[word]])).sum().backward()  # all ranks read the same word
        trained.append((table.weight.grad != 0).sum())
    worker.log(trained=max(trained))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
