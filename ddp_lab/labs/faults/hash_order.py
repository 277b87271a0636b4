"""Each rank numbers the words of a `set`, in the order in which its own interpreter happens to hold them.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.hash_order

Look at the numbers of the words: another table on each rank, so that row 3 is trained for other words on each. (The
ranks must be fresh interpreters, as here: ranks forked from one have one order.)
"""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker

TEXT = "a rank reads words of its own and all ranks keep one table of the words in common"


def main():
    dist.init_process_group()
    words = set(TEXT.split())
    number = {word: row for row, word in enumerate(words)}

    table = torch.nn.Embedding(len(number), 1)
    torch.nn.init.zeros_(table.weight)
    model = DistributedDataParallel(table)
    model(torch.tensor([number["table"]])).sum().backward()  # all ranks read the same word
    worker.log(words=sorted(words), numbers=[number[word] for word in sorted(words)])
    worker.log(trained=(table.weight.grad != 0).sum())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
