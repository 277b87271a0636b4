"""The weights of the model inside the wrapper are saved, under the names that a bare model has.

    python -m ddp_lab.labs.faults.dp_module_prefix_cured

Look at the names, and at: loaded.
"""

import io

import torch
from torch import nn

from ddp_lab import worker
from ddp_lab.meters.virtual import data_parallel


def main():
    model = data_parallel(nn.Linear(4, 1), 2)

    checkpoint = io.BytesIO()  # stands for a file
    torch.save(model.module.state_dict(), checkpoint)
    checkpoint.seek(0)

    bare = nn.Linear(4, 1)  # as in a script that only predicts
    saved = torch.load(checkpoint, map_location="cpu")
    worker.log(names=list(saved))
    bare.load_state_dict(saved)
    worker.log(loaded=torch.equal(bare.weight, model.module.weight.cpu()))


if __name__ == "__main__":
    main()
