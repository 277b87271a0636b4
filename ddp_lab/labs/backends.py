"""Every collective with every dtype, tried: which of them this backend does, and does right.

    torchrun --standalone --nproc-per-node 2 -m ddp_lab.labs.backends

Look at the records: `outcome` is "right", "wrong", or the error's text. A refusal comes before anything is sent, on
all ranks alike, so that the next one can be tried.
"""

import gc
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from ddp_lab import worker

DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn"),
    *("int64", "int32", "int16", "int8", "uint8", "bool", "complex64"),
]


def attempts(mine, rank, size):
    """{name: (what to call, what it fills, the number that is to be in each row of it; None where nothing is to be)}.

    Rank r hands in tensors of r + 1.
    """
    rows = [torch.zeros_like(mine) for _ in range(size)]
    out, flat, same = torch.zeros_like(mine), torch.cat(rows), [mine] * size
    own, everyone, total = mine.clone(), range(1, size + 1), size * (size + 1) / 2
    ends = [dist.P2POp(dist.isend, mine, (rank + 1) % size), dist.P2POp(dist.irecv, out, (rank - 1) % size)]
    root, op = rank == 0, dist.ReduceOp
    return {
        "all_reduce SUM": (lambda: dist.all_reduce(own), own, [total]),
        "all_reduce AVG": (lambda: dist.all_reduce(own, op.AVG), own, [total / size]),
        "all_reduce MAX": (lambda: dist.all_reduce(own, op.MAX), own, [size]),
        "reduce": (lambda: dist.reduce(own, 0), own, [total] if root else None),
        "broadcast": (lambda: dist.broadcast(own, 0), own, [1]),
        "all_gather": (lambda: dist.all_gather(rows, mine), rows, everyone),
        "gather": (lambda: dist.gather(mine, rows if root else None), rows, everyone if root else None),
        "scatter": (lambda: dist.scatter(out, same if root else None), out, [1]),
        "reduce_scatter": (lambda: dist.reduce_scatter(out, same), out, [total]),
        "all_to_all": (lambda: dist.all_to_all(rows, same), rows, everyone),
        "all_to_all_single": (lambda: dist.all_to_all_single(flat, torch.cat(same)), flat, everyone),
        "isend, irecv": (lambda: [work.wait() for work in dist.batch_isend_irecv(ends)], out, [(rank - 1) % size + 1]),
    }


def main():
    dist.init_process_group(timeout=timedelta(minutes=2))
    rank, size = dist.get_rank(), dist.get_world_size()
    here = int(os.environ["LOCAL_WORLD_SIZE"])  # a GPU for each rank here, or the CPU for all
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).device_count() >= here), "cpu")
    backends = dict(part.split(":") for part in dist.get_backend_config().split(","))  # of each kind of device

    for device in dict.fromkeys(["cpu", kind]):  # the CPU's, and the GPU's where there is one
        for dtype in DTYPES:
            own = torch.device(device, int(os.environ["LOCAL_RANK"]))
            mine = torch.full((4,), rank + 1).to(own, getattr(torch, dtype))
            for name in attempts(mine, rank, size):
                call, filled, numbers = attempts(mine, rank, size)[name]  # fresh tensors for each
                try:
                    call()
                    got = torch.cat(list(filled) if isinstance(filled, list) else [filled])
                    wanted = torch.tensor(numbers or [0]).repeat_interleave(4).to(mine)
                    outcome = "right" if numbers is None or torch.equal(got, wanted) else "wrong"
                except (RuntimeError, ValueError, TypeError) as error:
                    outcome = str(error).splitlines()[0]
                worker.log(backend=backends[device], device=device, collective=name, dtype=dtype, outcome=outcome)
    dist.barrier()  # leave together
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    gc.collect()  # drops the process group, or torch 2.14 may abort a healthy process at exit
