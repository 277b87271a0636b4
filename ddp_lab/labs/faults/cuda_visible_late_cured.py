"""CUDA_VISIBLE_DEVICES set before anything touches CUDA. (In the shell or the launcher it is certain to be.)

    torchrun --standalone --nproc-per-node 1 -m ddp_lab.labs.faults.cuda_visible_late_cured

Needs a GPU. Look at: the mask hides every GPU, and CUDA has none.
"""

import os

import torch

from ddp_lab import worker


def main():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no GPU for this process
    torch.cuda.is_available()  # CUDA begins here, with the mask of this moment
    available = torch.cuda.is_available()
    print(f"the mask is {os.environ['CUDA_VISIBLE_DEVICES']!r}, and CUDA has GPUs: {available}")
    worker.log(mask=os.environ["CUDA_VISIBLE_DEVICES"], available=available)


if __name__ == "__main__":
    main()
