"""The module returns its loss: a number from each device comes back as a vector, and backward() wants one number.

    python -m ddp_lab.labs.faults.dp_scalar_outputs

Look at torch's warning, and at the shape of the loss.
"""

import torch
from torch import nn

from ddp_lab import worker
from ddp_lab.meters.virtual import data_parallel


class WithLoss(nn.Linear):
    def forward(self, x):
        return super().forward(x).square().mean()


def main():
    torch.manual_seed(0)
    net = WithLoss(4, 1).double()
    model = data_parallel(net, 3)
    batch = torch.randn(6, 4, device=net.weight.device).double()
    expected = torch.autograd.grad(net(batch), [net.weight])[0]  # the module itself, the whole batch
    loss = model(batch)
    worker.log(shape=list(loss.shape))
    loss.backward()
    worker.log(difference=(net.weight.grad - expected).abs().max())


if __name__ == "__main__":
    main()
