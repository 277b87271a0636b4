"""No process of a run listens on any address but loopback, whatever the machine calls itself."""

import shutil
import socket
import subprocess
import sys
from collections import Counter

import psutil
import pytest
from kernels import READY, kernel
from waiting import wait_for

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}

SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(1))
else:
    dist.recv(torch.ones(1), src=0)
"""


def reachable(process):
    """The sockets with which a process waits for whoever comes: TCP that listens, UDP without a peer."""
    return [c for c in process.net_connections("inet")
            if c.status == psutil.CONN_LISTEN or (c.type == socket.SOCK_DGRAM and not c.raddr)]


def test_a_run_listens_on_loopback_only(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    with kernel(tmp_path) as it:
        it.send("import ddp_lab as lab; lab.torchrun('script.py', timeout=None, stall=None)")
        wait_for(lambda: it.counts() == Counter(agent=1, guard=2, rank=2), READY, "the run is there")
        wait_for(lambda: it.stands_in(0, "all_reduce"), READY, "rank 0 is connected", every=0.2)
        wait_for(lambda: it.stands_in(1, "recv"), READY, "rank 1 is connected", every=0.2)
        found = {role: [c for p in processes for c in reachable(p)] for role, processes in it.roles().items()}

    assert found["agent"]  # torchrun's stores
    assert len(found["rank"]) >= 2  # gloo in each rank
    assert {c.laddr.ip for sockets in found.values() for c in sockets} <= LOOPBACK


NAMELESS = """
import socket
import ddp_lab as lab

try:
    print("it resolves:", socket.gethostbyname(socket.gethostname()))
except OSError:
    run = lab.torchrun("hello", show="none")
    print(run.ok, [rank.records[0]["total"] for rank in run.ranks])
"""


def in_namespace(*command):
    """A command line that runs `command` on a machine (a namespace) whose name nobody knows."""
    rename = ["sh", "-c", 'hostname nosuchhost && exec "$@"', "-"]
    return ["unshare", "--user", "--map-root-user", "--uts", *rename, *command]


def namespaces_work():
    return shutil.which("unshare") and subprocess.run(in_namespace("true"), capture_output=True).returncode == 0


@pytest.mark.slow
def test_a_host_name_that_resolves_to_nothing_does_not_matter(tmp_path, monkeypatch):
    if not namespaces_work():
        pytest.skip("no user and host name namespaces here (unshare)")
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path))
    command = in_namespace(sys.executable, "-c", NAMELESS)
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * READY)
    assert done.stdout.splitlines()[-1:] == ["True [3.0, 3.0]"], done.stdout + done.stderr
