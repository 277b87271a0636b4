"""Attributes of the module are asked of `model.module`.

    python -m ddp_lab.labs.faults.dp_attribute_behind_wrapper_cured

Look at the number of classes.
"""

import torch
from torch import nn

from ddp_lab import worker
from ddp_lab.meters.virtual import data_parallel


class Classifier(nn.Linear):
    def __init__(self, classes):
        super().__init__(4, classes)
        self.classes = classes


def main():
    model = data_parallel(Classifier(3), 2)
    scores = model(torch.ones(6, 4))
    worker.log(columns=scores.shape[1])
    worker.log(classes=model.module.classes)


if __name__ == "__main__":
    main()
