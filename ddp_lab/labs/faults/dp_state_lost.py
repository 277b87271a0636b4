"""A module counts its samples in forward(): each replica counts, and is thrown away with its count.

    python -m ddp_lab.labs.faults.dp_state_lost

Look at what the module has counted after each step, and at the samples that were given.
"""

import torch
from torch import nn

from ddp_lab import worker
from ddp_lab.meters.virtual import data_parallel


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(4, 1)
        self.seen = 0

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)


def main():
    net = Counting()
    model = data_parallel(net, 3)
    for step in range(4):
        outputs = model(torch.ones(7, 4))
        worker.log(step=step, given=7 * (step + 1), counted=net.seen, outputs=len(outputs))
    print(f"{net.seen} samples counted of {7 * (step + 1)}")


if __name__ == "__main__":
    main()
