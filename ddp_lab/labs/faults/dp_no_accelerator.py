"""A machine without a GPU: DataParallel passes the call on to the module, whichever devices were asked for, silently.

    python -m ddp_lab.labs.faults.dp_no_accelerator

Look at the shares that forward() was given, and at the names of the weights.
"""

import os

import torch
from torch import nn

from ddp_lab import worker


class Look(nn.Linear):
    def forward(self, x):
        worker.log(share=len(x))
        return super().forward(x)


def main():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # as on a machine without a GPU
    model = nn.DataParallel(Look(4, 1), [0, 1, 2, 3])
    model(torch.ones(8, 4))
    worker.log(names=list(model.state_dict()))


if __name__ == "__main__":
    main()
