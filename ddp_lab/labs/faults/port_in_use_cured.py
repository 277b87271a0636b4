"""A port that the system gives when the job starts: one that nobody has.

    python -m ddp_lab.labs.faults.port_in_use_cured

Look at: one record from each rank. (The port is free when it is asked for. torchrun is safer, it keeps the socket.)
"""

import gc
import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ddp_lab import worker


def main():
    other_job = socket.create_server(("", 0))  # plays a job with the same script, so with the same port
    with socket.create_server(("", 0)) as probe:  # 0 asks for any that is free
        port = probe.getsockname()[1]
    mp.spawn(work, args=(2, port), nprocs=2)
    other_job.close()


def work(rank, world_size, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    dist.init_process_group(rank=rank, world_size=world_size, timeout=timedelta(minutes=2))
    total = torch.tensor(rank + 1.0)
    dist.all_reduce(total)
    worker.log(rank=rank, total=total)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
