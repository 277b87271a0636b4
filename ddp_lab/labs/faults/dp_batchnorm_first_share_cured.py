"""The module itself takes the statistics anew, after training, from whole batches.

    python -m ddp_lab.labs.faults.dp_batchnorm_first_share_cured

Look at the running mean beside the means of the shares and of the batch.
"""

import torch
from torch import nn

from ddp_lab import worker
from ddp_lab.meters.virtual import data_parallel


def main():
    net = nn.BatchNorm1d(1)
    model = data_parallel(net, 3)
    batch = torch.tensor([[0.0], [2.0], [10.0], [12.0], [20.0], [22.0]], device=net.weight.device)
    for _ in range(50):
        model(batch)
    net.reset_running_stats()
    net.momentum = None  # a plain average over what follows
    with torch.no_grad():
        net(batch)  # after training, once through the data: not on shares
    running = net.running_mean.item()
    shares = [share.mean().item() for share in batch.chunk(3)]
    worker.log(shares=shares, batch=batch.mean(), running=running, batches=net.num_batches_tracked)
    print(f"running mean {running:.1f}, the shares' means {shares}, the batch's {batch.mean().item():.1f}")


if __name__ == "__main__":
    main()
