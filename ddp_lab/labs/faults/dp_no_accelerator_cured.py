"""The script says it when there are fewer devices than it asks for.

    python -m ddp_lab.labs.faults.dp_no_accelerator_cured

Look at the line that it prints.
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
    if (found := torch.cuda.device_count()) < 4:
        print(f"4 devices asked for, {found} found: the module runs alone, on the CPU")
    model = nn.DataParallel(Look(4, 1), [0, 1, 2, 3])
    model(torch.ones(8, 4))
    worker.log(names=list(model.state_dict()))


if __name__ == "__main__":
    main()
