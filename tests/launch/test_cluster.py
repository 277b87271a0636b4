"""Runs on emulated hosts: each host is one of its own, the links keep their rate, and all else is as in any run."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from kernels import READY, kernel
from launching import line_of, plain, script, see
from waiting import wait_for

import ddp_lab as lab
from ddp_lab.launch import cluster, processes

if why := cluster.why_not():
    pytest.skip(why, allow_module_level=True)

WHERE = """
import os, socket
import torch
import torch.distributed as dist
from ddp_lab import worker

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
port = 40_000 + dist.get_node_local_rank()
with socket.create_server(("127.0.0.1", port)):  # on each host: were the loopback one, the address would be taken
    dist.barrier()
names = ("LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
host = socket.gethostname()
print(f"here is {host}")
worker.log(total=total.item(), host=host, address=socket.gethostbyname(host), **{n: os.environ[n] for n in names})
dist.destroy_process_group()
"""


def records(run):
    return [record for rank in run.ranks for record in rank.records]


@pytest.mark.parametrize(("nodes", "nproc"), [(2, 1), (2, 2), (3, 1), (4, 1)])
def test_each_host_has_a_name_an_address_and_a_loopback_of_its_own(tmp_path, start, nodes, nproc):
    seen = see(lab.torchrun, script(tmp_path, WHERE), nodes=nodes, nproc=nproc)
    assert seen.error is None, seen.text
    for rank, record in enumerate(records(seen.run)):
        host = rank // nproc
        assert (record["host"], record["address"]) == (f"host{host}", f"10.77.0.{host + 1}")
        assert record["total"] == nodes * nproc == int(record["WORLD_SIZE"])
        assert (int(record["GROUP_RANK"]), int(record["LOCAL_RANK"])) == (host, rank % nproc)
        assert (record["MASTER_ADDR"], int(record["LOCAL_WORLD_SIZE"])) == ("10.77.0.1", nproc)
        assert record["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // (nodes * nproc)))
        assert seen.run.ranks[rank].stderr == ""
        assert f"[host {host} rank {rank}] here is host{host}" in plain(seen.text).splitlines()


ALL_REDUCES = """
import sys, time
import torch
import torch.distributed as dist
from ddp_lab import worker

dist.init_process_group("gloo")
data = torch.ones(16_000_000 // 4)
n = dist.get_world_size()
for step in range(3):
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(data)
    # Each rank of a ring sends 2 (n - 1) / n times the data.
    worker.log(step=step, rate=2 * (n - 1) / n * data.nbytes * 8 / (time.perf_counter() - began))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("link", ["200mbit", "1gbit"])
def test_a_large_all_reduce_reaches_the_rate_of_the_link_and_no_more(tmp_path, link):
    run = lab.torchrun(script(tmp_path, ALL_REDUCES), nodes=2, nproc=1, link=link, show="none")
    best = max(record["rate"] for record in records(run))
    assert 0.7 < best / cluster.rate(link) < 1.05


def test_a_link_limits_what_a_host_receives_from_several_too(tmp_path):
    source = ALL_REDUCES.replace("dist.all_reduce(data)", "dist.gather(data, [data.clone() for _ in range(n)] if "
                                 "dist.get_rank() == 0 else None)").replace("2 * (n - 1) / n", "(n - 1)")
    run = lab.torchrun(script(tmp_path, source), nodes=3, nproc=1, link="500mbit", show="none")
    best = max(record["rate"] for record in run.ranks[0].records)
    assert 0.7 < best / cluster.rate("500mbit") < 1.05


@pytest.mark.parametrize("nodes", [2, 3])
def test_the_wire_carries_what_the_meter_counts_and_little_more(tmp_path, nodes):
    run = lab.torchrun(script(tmp_path, ALL_REDUCES), nodes=nodes, nproc=1, count=True, show="none")
    calls = run.collectives
    payload = calls[(calls["rank"] == 0) & (calls["op"] == "all_reduce")]["bytes"].sum()
    assert payload == 3 * 16_000_000
    sent = 2 * (nodes - 1) / nodes * payload
    assert list(run.wire.columns) == ["host", "interface", "sent", "received"]
    assert list(run.wire["host"]) == list(range(nodes)) and set(run.wire["interface"]) == {"eth0"}
    for column in ("sent", "received"):
        assert ((run.wire[column] > sent) & (run.wire[column] < 1.05 * sent)).all(), run.wire
    assert run.wire["sent"].sum() == pytest.approx(run.wire["received"].sum(), rel=0.01)


def test_a_run_on_this_machine_alone_has_no_wire():
    run = lab.torchrun("hello", show="none")
    with pytest.raises(lab.InputError, match="nodes=2"):
        run.wire  # noqa: B018


FAILS = """
import sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == int(sys.argv[1]):
    raise ValueError("no data")  # here
time.sleep(600)
"""


@pytest.mark.parametrize("bad", [0, 1, 3])
def test_a_rank_that_fails_is_told_and_the_hosts_are_stopped(tmp_path, start, bad):
    path = script(tmp_path, FAILS)
    seen = see(lab.torchrun, path, str(bad), nodes=2, nproc=2, timeout=60)
    assert (type(seen.error), seen.error.rank, seen.error.line) == (lab.RankError, bad, line_of(path, "# here"))
    assert [rank.exitcode for rank in seen.run.ranks] == [1 if rank == bad else -15 for rank in range(4)]


def test_a_killed_rank_is_reported_as_on_one_host(tmp_path):
    source = FAILS.replace('raise ValueError("no data")', "import os; os.kill(os.getpid(), 9)")
    seen = see(lab.torchrun, script(tmp_path, source), "1", nodes=2, nproc=1, timeout=60)
    assert str(seen.error).startswith(
        "rank 1 was killed (SIGKILL), often for memory; rank 0 was stopped with it"
    )


DEADLOCK = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1))  # one
else:
    dist.recv(torch.ones(1), src=0)  # other
"""


def test_a_hang_is_reported_with_each_ranks_line(tmp_path):
    path = script(tmp_path, DEADLOCK)
    seen = see(lab.torchrun, path, nodes=2, nproc=1, stall=3)
    assert type(seen.error) is lab.HangError and seen.error.reason == "stall"
    assert [spot["line"] for spot in seen.error.where] == [line_of(path, "# one"), line_of(path, "# other")]


SLOW = """
import torch
import torch.distributed as dist
from ddp_lab import worker

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2_500_000))  # 8 s at 10 Mbit/s
worker.log(done=True)
"""


def test_data_on_a_slow_link_is_a_sign_of_life(tmp_path):
    run = lab.torchrun(script(tmp_path, SLOW), nodes=2, nproc=1, link="10mbit", stall=3, show="none")
    assert run.seconds > 2 * 3


@pytest.mark.parametrize("warm", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_nothing_of_it_is_on_this_machines_network_and_nothing_stays(tmp_path, warm):
    (tmp_path / "script.py").write_text(DEADLOCK)

    def interfaces():
        return [line.split(":")[0] for line in Path("/proc/net/dev").read_text().splitlines()]

    def namespaces():
        found = set()
        for pid in psutil.pids():
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/net"))
            except OSError:
                pass
        return found

    before = interfaces()
    ours = os.readlink("/proc/self/ns/net")
    with kernel(tmp_path) as it:
        cell = it.send(f"import ddp_lab as lab; lab.torchrun('script.py', nodes=2, nproc=1, stall=None, warm={warm})")
        wait_for(lambda: it.counts() == Counter(agent=1, host=2, guard=2, rank=2), READY, "the run is there")
        for rank, function in enumerate(("all_reduce", "recv")):
            wait_for(lambda: it.stands_in(rank, function), READY, f"rank {rank} waits", every=0.2)  # noqa: B023
        roles = it.roles()
        of_hosts = {os.readlink(f"/proc/{p.pid}/ns/net") for p in roles["host"]}
        assert len(of_hosts) == 2 and ours not in of_hosts
        assert {os.readlink(f"/proc/{p.pid}/ns/net") for p in roles["rank"]} == of_hosts
        assert os.readlink(f"/proc/{roles['agent'][0].pid}/ns/net") not in {ours, *of_hosts}
        assert interfaces() == before
        for host in roles["host"]:
            listening = listeners(host.pid)
            assert listening and all(address.startswith("10.77.0.") for address in listening)
        for process in (*roles["agent"], *roles["host"]):  # an IPv6 address would be announced over the links
            assert ipv6_interfaces(process.pid) <= {"lo"}
            assert ipv6_packets(process.pid) == 0
        it.interrupt()
        assert it.finish(cell)[0] == "Interrupted"
        assert not of_hosts & namespaces()
        assert interfaces() == before


def ipv6_interfaces(pid):
    """The interfaces of a process's host that have IPv6 addresses."""
    table = Path(f"/proc/{pid}/net/if_inet6")
    return {line.split()[-1] for line in table.read_text().splitlines()} if table.exists() else set()


def ipv6_packets(pid):
    """How many IPv6 packets a process's host has received so far."""
    table = Path(f"/proc/{pid}/net/snmp6")
    counts = dict(line.split() for line in table.read_text().splitlines()) if table.exists() else {}
    return int(counts.get("Ip6InReceives", 0))


def listeners(pid):
    """The addresses on which a process's host listens."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            if state == "0A":
                last = bytes.fromhex(local.split(":")[0][-8:])[::-1]
                found.append(".".join(map(str, last)))
    return found


BOTH = """
import sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from ddp_lab import worker

dist.init_process_group("gloo")
Path(sys.argv[1]).touch()
limit = time.monotonic() + 60
while not Path(sys.argv[2]).exists():
    assert time.monotonic() < limit, "the other run never came"
    time.sleep(0.02)
total = torch.tensor([float(sys.argv[3])])
dist.all_reduce(total)
worker.log(total=total.item())
"""


def test_two_runs_at_once_do_not_meet(tmp_path):
    path = script(tmp_path, BOTH)
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    jobs = [(path, one, two, "1"), (path, two, one, "10")]
    with ThreadPoolExecutor(2) as threads:
        runs = list(threads.map(lambda job: lab.torchrun(*job, nodes=2, nproc=1, show="none"), jobs))
    assert [[record["total"] for record in records(run)] for run in runs] == [[2, 2], [20, 20]]


def test_a_host_whose_torchrun_is_killed_ends_the_run(tmp_path):
    (tmp_path / "script.py").write_text(DEADLOCK)
    with kernel(tmp_path) as it:
        cell = it.send("import ddp_lab as lab; lab.torchrun('script.py', nodes=2, nproc=1, stall=None)")
        wait_for(lambda: it.counts() == Counter(agent=1, host=2, guard=2, rank=2), READY, "the run is there")
        wait_for(lambda: it.stands_in(1, "recv"), READY, "rank 1 waits", every=0.2)
        guard = json.loads((it.folder() / "rank1/guard.json").read_text())["guard"][0]
        host = psutil.Process(guard).parent()
        assert host in it.roles()["host"]
        processes.send(processes.identity(host.pid), signal.SIGKILL)
        name, shown, _ = it.finish(cell)
        assert name == "LaunchError" and "its launcher was killed from outside (signal 9)" in shown, shown
        assert not it.children()


AS_A_USER = ["unshare", "--user", "--map-user=1001", "--map-group=1001"]  # with all files its own, and no capability

UNPRIVILEGED = """
import os
import ddp_lab as lab
status = open("/proc/self/status").read()
capabilities = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
run = lab.torchrun("hello", nodes=2, nproc=1, show="none")
print(os.geteuid(), int(capabilities, 16), run.ok, len(run.wire))
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare makes the user that this is tried as")
def test_no_root_is_needed(tmp_path):
    env = os.environ | {"DDP_LAB_HOME": str(tmp_path)}
    command = [*AS_A_USER, sys.executable, "-c", UNPRIVILEGED]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=2 * READY)
    assert done.stdout.splitlines()[-1:] == ["1001 0 True 2"], done.stdout + done.stderr
