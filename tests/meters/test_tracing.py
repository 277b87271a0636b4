"""What a rank does when it is traced: the script does not notice, and its trace is there however it ends."""

import os
import textwrap
from pathlib import Path

import pytest

import ddp_lab as lab

BEGIN = """
import os, sys
import torch
import torch.distributed as dist
from ddp_lab import worker
"""


def run_of(folder, body, trace=True, nproc=1, **options):
    path = folder / "train.py"
    path.write_text(BEGIN + textwrap.dedent(body))
    return lab.torchrun(path, nproc=nproc, show="none", trace=trace, **options)


def logged(run, rank=0):
    return {name: value for record in run.ranks[rank].records for name, value in record.items()}


TRAINING = """
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
torch.manual_seed(dist.get_rank())
net = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Dropout(), torch.nn.Tanh(), torch.nn.Linear(9, 1))
net[0].weight.requires_grad_(False)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn(8, 9)).square().mean().backward()
    optimizer.step()
    worker.log(step=torch.tensor(step))
x = torch.ones(3, requires_grad=True)
(slope,) = torch.autograd.grad(x.square().sum(), [x])
worker.log(
    weights=[p.flatten() for p in model.parameters()], slope=slope, argv=sys.argv[1:],
    env=sorted(os.environ),
)
print("done", file=sys.stderr)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("is_warm", [True, False], ids=["warm", "cold"])
def test_it_changes_no_result_no_output_and_no_environment(tmp_path, is_warm):
    runs = [run_of(tmp_path, TRAINING, trace, nproc=2, warm=is_warm) for trace in (True, False)]
    traced, plain = ([rank.records for rank in run.ranks] for run in runs)
    assert traced == plain and plain[0][0] == {"step": 0}
    assert [rank.stderr for rank in runs[0].ranks] == ["done\n"] * 2
    assert logged(runs[0])["slope"] == [2, 2, 2] and "RANK" in logged(runs[0])["env"]
    table = runs[0].timeline()
    assert set(table["step"].dropna()) == {0, 1, 2, 3}
    assert list(table[table["step"].isna()]["kind"]) == ["backward"] * 2  # by autograd.grad, behind the last step


def test_the_profilers_own_lines_come_where_the_learner_has_asked_for_them(tmp_path):
    run = run_of(tmp_path, "worker.log(level=os.environ['KINETO_LOG_LEVEL'])", env={"KINETO_LOG_LEVEL": "0"})
    assert logged(run) == {"level": "0"} and "profiler_start" in run.ranks[0].stderr


STEP = """
model = torch.nn.Linear(2, 1)
model(torch.ones(1, 2)).sum().backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
"""
ENDS = {
    "an exception": ("raise ValueError('enough')", "ValueError"),
    "an exception in backward": ("torch.ones(2, requires_grad=True).exp().backward()", "RuntimeError"),
    "sys.exit": ("sys.exit(3)", "SystemExit"),
    "sys.exit with success": ("sys.exit()", None),
    "an exit handler that trains": ("import atexit; atexit.register(exec, STEP, globals())", None),
    "a thread that trains on": ("import threading; threading.Thread(target=torch.ones, args=[2]).start()", None),
    "a fork that ends first": ("os.fork() or sys.exit(); os.wait()", None),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_trace_is_there_however_the_script_ends(tmp_path, name):
    last, error = ENDS[name]
    run = run_of(tmp_path, f"STEP = '''{STEP}'''\n{STEP}\n{last}", check=False)
    assert run.ok == (error is None)
    kinds = ["forward", "backward", "optimizer"]
    assert list(run.timeline()["kind"])[:3] == kinds
    if name == "an exit handler that trains":
        assert list(run.timeline()["kind"]) == 2 * kinds
    if error in ("ValueError", "RuntimeError"):
        assert run.ranks[0].stderr.rstrip().splitlines()[-1].startswith(error)
        assert f"→   {len(Path(tmp_path / 'train.py').read_text().splitlines())}" in str(run.error)
        assert "tracing.py" not in str(run.error)  # no frames of ours


@pytest.mark.parametrize(
    "last", ["os._exit(0)", "os.kill(os.getpid(), 9)", "os.fork() or sys.exit(); os.wait(); os._exit(0)"]
)
def test_a_rank_that_leaves_without_its_end_has_no_trace(tmp_path, last):
    run = run_of(tmp_path, f"{STEP}\n{last}", check=False)
    with pytest.raises(lab.InputError, match="no rank of train.py got so far that its times could be traced"):
        run.timeline()


def test_a_second_profiler_is_refused_with_the_cure_and_a_fork_may_have_its_own(tmp_path):
    body = """
        import torch.profiler
        worker.log(whole=1)
        child = os.fork()
        if child == 0:
            with torch.profiler.profile() as its_own:
                torch.ones(2)
            worker.log(child=len(its_own.events()))
            os._exit(0)
        os.waitpid(child, 0)
        with torch.profiler.profile():
            torch.ones(2)
    """
    run = run_of(tmp_path, STEP + textwrap.dedent(body), check=False)
    assert "Run a script that profiles itself without trace=True" in str(run.error)
    assert logged(run)["child"] > 0 and len(run.timeline()) == 3


def test_count_and_trace_agree(tmp_path):
    run = run_of(tmp_path, TRAINING, nproc=2, count=True)
    moving = run.timeline().query("kind == 'communication'")
    for rank in (0, 1):
        seen = moving[moving["rank"] == rank].groupby(["step", "name", "bytes"]).size()
        counted = run.collectives[run.collectives["rank"] == rank].groupby(["step", "op", "bytes"]).size()
        assert dict(seen) == dict(counted) and len(seen) >= 4


def test_steps_of_every_kind_are_told_as_they_were_logged(tmp_path):
    steps = ["one", 'a "b" / \\ %22 é\n', [1, "2"], {"epoch": 1}, 1.5, True, -(10**30)]
    body = f"""
        for step in {steps!r}:
            torch.ones(1, requires_grad=True).sum().backward()
            worker.log(step=step)
    """
    run = run_of(tmp_path, textwrap.dedent(body))
    assert list(run.timeline().query("kind == 'backward'")["step"]) == steps
    assert [record["step"] for record in run.ranks[0].records] == steps


def test_where_a_traced_rank_hangs_is_told_as_in_any_run(tmp_path):
    body = """
        dist.init_process_group()
        if dist.get_rank() == 0:
            dist.barrier()
        dist.all_reduce(torch.ones(1))
        import time
        time.sleep(600)
    """
    path = tmp_path / "train.py"
    path.write_text(BEGIN + textwrap.dedent(body))
    with pytest.raises(lab.HangError) as hang:
        lab.torchrun(path, show="none", trace=True, stall=3)
    assert "barrier" in str(hang.value) and "tracing.py" not in str(hang.value)
    with pytest.raises(lab.InputError, match="It ended with HangError: no sign of life for 3 s; the run was stopped.$"):
        hang.value.run.timeline()


def test_the_file_stands_in_the_ranks_folder(tmp_path):
    run = run_of(tmp_path, STEP)
    assert os.listdir(run.dir / "rank0").count("trace.json") == 1
