"""How long a matrix product takes in each rank, with one thread for it, and with more threads than there are cores.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.threads

Look at the times: all ranks compute at once, and share the cores. `omp` is OMP_NUM_THREADS, which decides with how many
threads a rank begins.
"""

import argparse
import gc
import os
import statistics
import time

import torch
import torch.distributed as dist

from ddp_lab import worker


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, nargs="+", help="of a rank; else 1, and twice the cores")
    parser.add_argument("--size", type=int, default=256, help="of the matrices")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    cores = os.cpu_count()
    counts = args.threads or [1, 2 * cores]
    dist.init_process_group()

    seconds, x = {}, torch.rand(args.size, args.size)
    at_first = torch.get_num_threads()
    for _ in range(args.rounds):  # all in each round: what disturbs one disturbs all
        for count in counts:
            torch.set_num_threads(count)
            dist.barrier()  # all compute at the same time
            begin = time.perf_counter()
            for _ in range(10):
                x @ x
            took = (time.perf_counter() - begin) / 10
            seconds.setdefault(torch.get_num_threads(), []).append(took)  # by as many as torch says it has
    for count, times in seconds.items():
        median = statistics.median(times)
        ratio = median / statistics.median(seconds[counts[0]])
        print(f"{count} threads in each of {dist.get_world_size()} ranks on {cores} cores: {1000 * median:.2f} ms")
        worker.log(threads=count, cores=cores, seconds=median, ratio=ratio)
    worker.log(omp=os.environ.get("OMP_NUM_THREADS"), at_first=at_first)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
