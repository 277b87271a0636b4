"""Every lab and fault is short, says how to run it, ends well, and runs on any machine."""

import ast
import re

import pytest

from ddp_lab import catalog


def text(name):
    return catalog.find(name).read_text()


# a mutation costs two lines; a benchmark has both ways in it, a comparison all hooks or all options
LINES = {"equivalence": 90, "bench_dp_vs_ddp": 90, "hooks_compared": 95, "ddp_options": 110}


@pytest.mark.parametrize("name", catalog.names())
def test_a_lab_is_short_and_says_how_to_run_it(name):
    source = text(name)
    assert len(source.splitlines()) <= LINES.get(name, 80)
    doc = ast.get_docstring(ast.parse(source))
    assert f"-m {catalog.module(name)}\n" in doc and re.search(r"Look (at|for)", doc)


@pytest.mark.parametrize("name", [name for name in catalog.names() if "init_process_group" in text(name)])
def test_a_distributed_lab_ends_as_torch_needs_it(name):
    """Without these lines some healthy processes abort at exit (torch 2.14)."""
    source = text(name)
    *_, last = source.rstrip().splitlines()
    assert "    main()\n    gc.collect()  # " in source and last.startswith("    gc.collect()")
    assert "    dist.destroy_process_group()\n\n\nif __name__" in source


@pytest.mark.parametrize("name", [name for name in catalog.names() if "init_process_group" in text(name)])
def test_no_rank_of_a_lab_can_leave_while_another_still_joins(name):
    """gloo connects the ranks pair by pair: one that joins, does nothing and ends can break off the others' joining."""
    code = text(name).split("init_process_group", 1)[1]
    assert re.search(r"all_reduce|barrier|DistributedDataParallel", code)


@pytest.mark.parametrize("name", catalog.names())
def test_a_lab_chooses_no_device_or_backend_that_a_machine_may_lack(name):
    lessons = {"faults/device_ids_on_cpu": "device_ids", "faults/backend_unavailable": '"nccl"'}
    code = text(name).replace(lessons.get(name.removesuffix("_cured"), "\0"), "")
    assert not re.search(r"nccl|\.cuda\(\)|mps|device_ids|\"gloo\"", code)
