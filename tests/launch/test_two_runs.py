"""Two runs at once, from two kernels or from one, do not meet: each has its own ranks, arguments, port and folder."""

import json

import pytest
from kernels import READY, kernel
from waiting import wait_for

# Each run shows that it is there, and ends only when it has seen the other: so both are alive at the same time.
SCRIPT = """
import os, sys, time
from pathlib import Path

import torch
import torch.distributed as dist
from ddp_lab import worker

name, other, value = sys.argv[1], sys.argv[2], float(sys.argv[3])
dist.init_process_group("gloo")
total = torch.tensor([value + dist.get_rank()])
dist.all_reduce(total)
Path(name).touch()
limit = time.monotonic() + 60
while not Path(other).exists():
    assert time.monotonic() < limit, "the other run never came"
    time.sleep(0.02)
worker.log(name=name, sum=total.item(), world=dist.get_world_size(), port=os.environ["MASTER_PORT"])
dist.barrier()
dist.destroy_process_group()
"""

ONE = """
import json, ddp_lab as lab

def start(name, other, value):
    run = lab.torchrun("script.py", name, other, value, show="none")
    return {"folder": str(run.dir), "records": [rank.records for rank in run.ranks]}
"""


@pytest.fixture
def there(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def assert_apart(first, second):
    for run, name, value in ((first, "first", 100), (second, "second", 1000)):
        for records in run["records"]:
            (record,) = records
            assert (record["name"], record["sum"], record["world"]) == (name, 2 * value + 1, 2)
    assert first["records"][0][0]["port"] != second["records"][0][0]["port"]
    assert first["folder"] != second["folder"]


def last_line(printed):
    return json.loads(printed.splitlines()[-1])


def test_from_two_kernels(there):
    with kernel(there) as one, kernel(there) as two:
        cells = []
        for it, call in ((one, "'first', 'second', '100'"), (two, "'second', 'first', '1000'")):
            it.run(ONE)
            cells.append(it.send(f"print(json.dumps(start({call})))"))
        ends = [it.finish(cell, 2 * READY) for it, cell in zip((one, two), cells, strict=True)]
        assert [name for name, _, _ in ends] == [None, None], ends
        assert_apart(*(last_line(printed) for _, _, printed in ends))


def test_from_one_kernel(there):
    with kernel(there) as it:
        it.run(ONE)
        it.run(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with ThreadPoolExecutor(2) as threads:\n"
            "    jobs = [('first', 'second', '100'), ('second', 'first', '1000')]\n"
            "    runs = list(threads.map(lambda job: start(*job), jobs))\n",
            2 * READY,
        )
        assert_apart(*last_line(it.run("print(json.dumps(runs))")))


def test_stopping_one_leaves_the_other_alone(there):
    with kernel(there) as one, kernel(there) as two:
        for it in (one, two):
            it.run(ONE)
        stays = one.send("print(json.dumps(start('first', 'go', '100')))")
        goes = two.send("start('second', 'never', '1000')")
        wait_for(lambda: (there / "first").exists() and (there / "second").exists(), 2 * READY, "both runs are there")
        before = {p.pid for p in one.children().values()}
        two.interrupt()
        assert two.finish(goes)[0] == "Interrupted"
        assert not two.children()
        assert {p.pid for p in one.children().values()} == before
        (there / "go").touch()
        name, shown, printed = one.finish(stays)
        assert name is None, shown
        assert [records[0]["sum"] for records in last_line(printed)["records"]] == [201, 201]
