"""What a launcher has told this process: one record of each rank. It trains nothing, and does not even import torch.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.launched

Look at the variables that name the rank, and at the arguments: some launchers add one. What can be told at all is
the environment and the arguments; `who` in the record is the text given as --name, to tell several jobs apart.
"""

import argparse
import os

from ddp_lab import worker

NAMES = [
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", default="")
    args, added = parser.parse_known_args()  # `added`: what we have not asked for
    told = {name: os.environ.get(name) for name in NAMES}
    worker.log(who=args.name, added=" ".join(added), parent=os.getppid(), **told)


if __name__ == "__main__":
    main()
