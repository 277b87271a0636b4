"""CUDA_VISIBLE_DEVICES set in the code, after CUDA has been touched: it changes nothing, and nothing says so.

    torchrun --standalone --nproc-per-node 1 -m ddp_lab.labs.faults.cuda_visible_late

Needs a GPU. Look at: the mask hides every GPU, and CUDA still has them.
"""

import os

import torch

from ddp_lab import worker


def main():
    torch.cuda.is_available()  # CUDA begins here, with the mask of this moment
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no GPU for this process
    available = torch.cuda.is_available()
    print(f"the mask is {os.environ['CUDA_VISIBLE_DEVICES']!r}, and CUDA has GPUs: {available}")
    worker.log(mask=os.environ["CUDA_VISIBLE_DEVICES"], available=available)


if __name__ == "__main__":
    main()
