"""What is asked of emulated hosts: rates and times as tc writes them, what is refused, and machines that have none."""

import os
import shutil
import subprocess
import sys
import tempfile

import numpy
import pytest
from launching import script, see

import ddp_lab as lab
from ddp_lab import doctor, gpus
from ddp_lab.launch import cluster, environment, hosts, job

RATES = {
    "1gbit": 10**9, "200mbit": 2 * 10**8, "1.5Gbit": 1.5 * 10**9, "100000kbit": 10**8, " 2 gbit ": 2 * 10**9,
    "1gibit": 2**30, "100mibit": 100 * 2**20, "10mbps": 8 * 10**7, "1gibps": 8 * 2**30, "1000000": 10**6, 10**9: 10**9,
    ".5gbit": 5 * 10**8,
}  # fmt: skip
TIMES = {"20ms": 20_000, "500us": 500, "0.1s": 100_000, "1s": 10**6, "5 msec": 5000, "7usecs": 7, "1sec": 10**6}


@pytest.mark.parametrize("text", RATES)
def test_rates_are_those_of_tc(text):
    assert cluster.rate(text) == RATES[text]


def test_a_rate_is_a_whole_number_of_any_type():
    assert cluster.rate(numpy.int64(10**9)) == 10**9


@pytest.mark.parametrize("text", TIMES)
def test_times_are_those_of_tc(text):
    assert cluster.microseconds(text) == TIMES[text]


@pytest.mark.parametrize(("bits", "text"), [(10**9, "1 Gbit/s"), (2 * 10**8, "200 Mbit/s"), (1.5e9, "1.5 Gbit/s")])
def test_a_rate_is_spoken_as_people_write_it(bits, text):
    assert cluster.spoken(bits) == text


def test_a_cluster_says_what_it_is_and_how_its_ranks_are_started():
    it = cluster.Cluster(2, 3, 10**9, 20_000)
    assert str(it) == "2 emulated hosts, joined at 1 Gbit/s, 20 ms apart"
    assert str(cluster.Cluster(4, 1)) == "4 emulated hosts, joined without a limit"
    assert [it.host(rank) for rank in range(6)] == [0, 0, 0, 1, 1, 1]
    assert " ".join(it.options(1)) == "--nnodes 2 --node-rank 1 --nproc-per-node 3 --master-addr 10.77.0.1"


REFUSED = {
    "nodes no number": (dict(nodes="2"), "nodes='2' is not a whole number"),
    "nodes true": (dict(nodes=True), "nodes=True is not a whole number"),
    "no nodes": (dict(nodes=0), "nodes=0: a run has 1 to 8 hosts"),
    "many nodes": (dict(nodes=9), "nodes=9: a run has 1 to 8 hosts"),
    "link alone": (dict(link="1gbit"), "link='1gbit' is for several hosts, and there is one. Write nodes=2"),
    "delay alone": (dict(delay="1ms"), "delay='1ms' is for several hosts"),
    "link no rate": (dict(nodes=2, link="fast"), "link='fast' is no rate"),
    "link of a kind": (dict(nodes=2, link="1gbyte"), "link='1gbyte' is no rate"),
    "link without its unit": (dict(nodes=2, link="1g"), "link='1g' is no rate"),
    "link a float": (dict(nodes=2, link=1e9), "link=1000000000.0 is no rate"),
    "link true": (dict(nodes=2, link=True), "link=True is no rate"),
    "link negative": (dict(nodes=2, link="-1gbit"), "link='-1gbit' is no rate"),
    "link zero": (dict(nodes=2, link="0"), "link='0' is out of range: 100 kbit/s to 30 Gbit/s"),
    "link too fast": (dict(nodes=2, link="1tbit"), "link='1tbit' is out of range"),
    "delay no time": (dict(nodes=2, delay="soon"), "delay='soon' is no time"),
    "delay a number": (dict(nodes=2, delay=20), "delay=20 is no time"),
    "delay too long": (dict(nodes=2, delay="2s"), "delay='2s' is out of range"),
    "many ranks": (dict(nodes=8, nproc=9), "8 hosts with 9 each: 72 ranks: a run has 1 to 64 ranks"),
    "show": (dict(nodes=2, nproc=1, show=2), "there is no rank 2 in a run of 2 ranks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_used_is_refused_in_one_line(case, tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_LAB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cluster, "_attempt", lambda *_: "")
    options, says = REFUSED[case]
    with pytest.raises(lab.InputError) as error:
        lab.torchrun("hello", **options)
    assert says in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "home").exists()


def test_without_netem_a_delay_is_refused_with_the_cure(monkeypatch):
    monkeypatch.setattr(cluster, "_attempt", lambda *arguments: "no netem" if arguments else "")
    with pytest.raises(lab.InputError, match="kernel of this machine has not. Leave delay out."):
        lab.torchrun("hello", nodes=2, delay="1ms")


def test_the_emulated_hosts_talk_over_their_own_interface(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert environment.of_ranks(2, hosts.INTERFACE)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert environment.of_ranks(2)["GLOO_SOCKET_IFNAME"] == "lo"


def test_gpus_are_hidden_from_emulated_hosts(monkeypatch, tmp_path):
    if why := cluster.why_not():
        pytest.skip(why)
    monkeypatch.setattr(gpus, "count", lambda env=None: 4)
    path = script(tmp_path, "import os; print('sees', repr(os.environ['CUDA_VISIBLE_DEVICES']))")
    seen = see(lab.torchrun, path, nodes=2, nproc=1)
    assert "emulated hosts have no GPUs: the run is on the CPU, with gloo" in seen.text
    assert [rank.stdout for rank in seen.run.ranks] == ["sees ''\n", "sees ''\n"]


# ---- machines without them

# As the machine of a learner may be: no further namespaces within these.
FORBIDDEN = ["unshare", "--user", "--map-root-user", "sh", "-c"]
FORBIDDEN += ['echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "-"]

ASKS = """
import ddp_lab as lab
print(lab.can_run("07 on hosts", "08 too", nodes=2))
try:
    lab.torchrun("hello", nodes=2)
except lab.InputError as error:
    print(error)
print(lab.torchrun("hello", show="none").ok)
"""


def forbids():
    return shutil.which("unshare") and not subprocess.run([*FORBIDDEN, "true"], capture_output=True).returncode


def test_where_namespaces_are_forbidden_a_line_says_so_and_all_else_runs(tmp_path):
    if not forbids():
        pytest.skip("namespaces are needed here to forbid them")
    env = os.environ | {"DDP_LAB_HOME": str(tmp_path)}
    command = [*FORBIDDEN, sys.executable, "-c", ASKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    one, two, no, told, *_, ok = done.stdout.splitlines()
    assert one.startswith("skipped: 07 on hosts needs emulated hosts") and two.startswith("skipped: 08 too needs")
    assert (no, ok) == ("False", "True")
    assert told.startswith("nodes=2: emulated hosts need network namespaces, which this machine forbids (")
    assert "sudo sysctl -w user.max_user_namespaces=10000" in told
    assert done.stderr == ""


def test_elsewhere_than_on_linux_it_is_said(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(lab.InputError, match="emulated hosts need Linux"):
        cluster.of(2, 1, None, None)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(cluster, "_attempt", lambda *_: "ModuleNotFoundError: No module named 'pyroute2'")
    assert "pip install pyroute2" in cluster.why_not()


@pytest.fixture
def tried(monkeypatch, tmp_path):
    """A try that ends as the given Python code does, on a machine with settings of our own."""

    def end(code):
        (tmp_path / "launch").mkdir()
        (tmp_path / "launch" / "hosts.py").write_text(code)
        monkeypatch.setattr(cluster, "__file__", str(tmp_path / "launch" / "cluster.py"))
        monkeypatch.setattr(cluster, "SETTINGS", tmp_path)
        monkeypatch.setattr(cluster, "_worked", set())

    return end


def row():
    (found,) = [row for row in doctor.examine(full=True).rows if row["item"] == "emulated hosts"]
    return found


def test_the_doctor_tries_it_once_when_it_works(tried, tmp_path):
    count = tmp_path / "count"
    tried(f"open({str(count)!r}, 'a').write('x')")
    for _ in range(2):
        assert (row()["found"], row()["ok"]) == ("yes", True)
    assert count.read_text() == "xx"  # with a delay and without


def test_the_doctor_names_a_kernel_without_netem(tried):
    tried("import sys; print('no such file' if 'delay' in sys.argv else '')")
    assert row()["found"] == "yes" and "no netem" in row()["means"]


@pytest.mark.parametrize("code", ["print('PermissionError: unshare')", "raise SystemExit(1)", "import os; os.abort()"])
def test_the_doctor_has_a_cure_for_a_refusal(tried, code):
    tried(code)
    assert row()["found"] == "no" and "docker run" in row()["cure"]


FORBID = {
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user/max_user_namespaces": ("0", "10000"),
    "user/max_net_namespaces": ("0", "10000"),
}


@pytest.mark.parametrize("setting", FORBID)
def test_the_setting_that_forbids_them_is_named(tried, tmp_path, setting):
    tried("raise SystemExit(1)")
    forbids, allows = FORBID[setting]
    (tmp_path / setting).parent.mkdir()
    (tmp_path / setting).write_text(forbids + "\n")
    assert f"sysctl -w {setting.replace('/', '.')}={allows}" in row()["cure"]


def test_an_interrupt_of_the_try_is_told_in_a_line_and_leaves_nothing(tried, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    tried(
        "import os, signal, sys, time\n"
        "open(sys.argv[1] + '/hosts', 'w').close()\n"
        "os.kill(os.getppid(), signal.SIGINT)\n"
        "time.sleep(60)"
    )
    with pytest.raises(KeyboardInterrupt) as stop:
        lab.can_run("07 on hosts", nodes=2)
    assert type(stop.value) is job.Interrupted and "whether this machine can emulate hosts" in str(stop.value)
    assert not os.listdir(tmp_path / "tmp")


def test_a_stuck_try_is_given_up(tried, monkeypatch):
    monkeypatch.setattr(cluster, "TRY", 0.2)
    tried("import time; time.sleep(30)")
    assert row()["found"] == "no"


def test_the_short_report_does_not_try(tried, tmp_path):
    tried(f"open({str(tmp_path / 'asked')!r}, 'w')")
    doctor.examine()
    assert not (tmp_path / "asked").exists()
