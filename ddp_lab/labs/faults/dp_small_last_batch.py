"""The last batch is small: split over the devices, one of them gets a single sample, and BatchNorm refuses it.

    python -m ddp_lab.labs.faults.dp_small_last_batch

Look at the shares of each batch, and at the replica that the error names.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader

from ddp_lab import worker
from ddp_lab.meters.virtual import data_parallel


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model = data_parallel(net, 4)
    loader = DataLoader(torch.randn(21, 4), batch_size=8)
    for step, batch in enumerate(loader):
        worker.log(step=step, shares=[len(share) for share in batch.chunk(4)])  # as DataParallel splits it
        loss = model(batch).square().mean()
        worker.log(step=step, loss=loss)


if __name__ == "__main__":
    main()
