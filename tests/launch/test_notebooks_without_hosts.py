"""The notebooks that use emulated hosts, from top to bottom on a machine that forbids them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_cluster_asked import FORBIDDEN, forbids

ROOT = Path(__file__).parents[2]
WITH_HOSTS = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if "nodes=2" in path.read_text()]


def test_some_notebooks_use_emulated_hosts():
    assert [path.name[:2] for path in WITH_HOSTS] == ["07", "08"]


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_HOSTS, ids=lambda path: path.stem)
def test_it_passes_and_names_what_it_leaves_out(path, tmp_path):
    if not forbids():
        pytest.skip("namespaces are needed here to forbid them")
    ledger = tmp_path / "ledger.jsonl"
    env = os.environ | {"DDP_LAB_HOME": str(tmp_path / "runs"), "DDP_LAB_LEDGER": str(ledger)}
    command = [*FORBIDDEN, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbmake", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=env, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]
    events = [json.loads(line) for line in ledger.read_text().splitlines()]  # with the runs that its metadata states
    skips = [event for event in events if event["event"] == "skip"]
    assert skips and all("needs emulated hosts" in event["why"] for event in skips)
