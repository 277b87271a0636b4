"""The new head is made where the body is.

    python -m ddp_lab.labs.faults.dp_parameters_elsewhere_cured

Look at the shape of the outputs.
"""

import torch
from torch import nn

from ddp_lab import worker
from ddp_lab.meters.virtual import data_parallel


def main():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model = data_parallel(net, 2)
    net[1] = nn.Linear(4, 3, device=net[0].weight.device)
    outputs = model(torch.ones(6, 4))
    worker.log(shape=list(outputs.shape))


if __name__ == "__main__":
    main()
