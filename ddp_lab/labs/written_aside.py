"""A file that is written aside and renamed is whole as soon as it is there; but each rank downloads it.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.written_aside

Look at who has downloaded, and at how many letters each rank has read. (Rank 1 comes when rank 0 has written half.)
"""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import torch.distributed as dist

from ddp_lab import worker

CONTENT = "data" * 100


def download(path, store, rank):
    own = path.with_name(f"{path.name}.{rank}.part")  # a name of its own
    with own.open("w") as file:
        file.write(CONTENT[:200])
        if rank == 0:
            store.set("half", "")
            store.wait(["rank 1 has read"])
        file.write(CONTENT[200:])
    os.replace(own, path)
    worker.log(downloaded=path.name)


def main():
    dist.init_process_group()
    rank = dist.get_rank()
    folder = Path(tempfile.gettempdir(), f"aside_{os.environ['TORCHELASTIC_RUN_ID']}")
    folder.mkdir(exist_ok=True)
    store = dist.FileStore(str(folder / "store"), dist.get_world_size())
    path = folder / "data.txt"

    if rank > 0:
        store.wait(["half"])
    if not path.exists():
        download(path, store, rank)
    worker.log(letters=len(path.read_text()), of=len(CONTENT))
    store.set(f"rank {rank} has read", "")
    dist.barrier()  # leave together
    shutil.rmtree(folder, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
