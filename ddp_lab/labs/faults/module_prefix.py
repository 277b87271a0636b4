"""The wrapper's weights are saved: their names begin with "module.", and a bare model knows no such names.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.module_prefix

Look at the two lists of names in the error.
"""

import gc
import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_lab import worker


def main():
    dist.init_process_group()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))

    checkpoint = io.BytesIO()  # stands for a file
    torch.save(model.state_dict(), checkpoint)
    checkpoint.seek(0)

    bare = nn.Linear(4, 1)  # as in a script that only predicts
    saved = torch.load(checkpoint)
    worker.log(names=list(saved))
    bare.load_state_dict(saved)
    worker.log(loaded=torch.equal(bare.weight, model.module.weight))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops DDP's cycles, or torch 2.14 may abort a healthy process at exit
