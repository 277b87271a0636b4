"""Rank 0 of each node downloads first, and the others wait for it.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.faults.download_race_cured

Look at how many letters each rank has read: all.
"""

import gc
import os
import shutil
import tempfile
from pathlib import Path

import torch.distributed as dist

from ddp_lab import worker

CONTENT = "data" * 100
HERE = int(os.environ["LOCAL_WORLD_SIZE"])  # ranks on this node


def prepare(path, store):
    if not path.exists():
        with path.open("w") as file:
            file.write(CONTENT[:200])
            file.flush()
            store.set("half", "")  # a slow line: the others come, and look, before there is more
            store.wait([f"rank {other} looked" for other in range(1, HERE)])
            file.write(CONTENT[200:])
        worker.log(downloaded=path.name)
    return path.read_text()


def main():
    dist.init_process_group()
    local_rank = int(os.environ["LOCAL_RANK"])  # on this node, which has a disk of its own
    folder = Path(tempfile.gettempdir(), f"download_{os.environ['TORCHELASTIC_RUN_ID']}")
    folder.mkdir(exist_ok=True)
    store = dist.FileStore(str(folder / "store"), HERE)

    if local_rank > 0:
        store.wait(["half"])
    if local_rank == 0:
        prepare(folder / "data.txt", store)
    store.set(f"rank {local_rank} looked", "")
    dist.barrier()  # the others wait until rank 0 has all of it
    read = prepare(folder / "data.txt", store)

    worker.log(letters=len(read), of=len(CONTENT))
    dist.barrier()  # leave together
    shutil.rmtree(folder, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
