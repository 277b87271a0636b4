"""Each fault is a pair of scripts that differ by the cure, and has a test for either."""

import ast
from pathlib import Path

import pytest

from ddp_lab import catalog

TESTS = {
    node.name
    for path in Path(__file__).parent.glob("test_*.py")
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef)
}


def test_every_fault_has_its_cure_and_its_tests():
    faults = [name for name in catalog.names() if name.startswith("faults/") and not name.endswith("_cured")]
    for fault in faults:
        assert f"{fault}_cured" in catalog.names()
        name = fault.removeprefix("faults/")
        assert {f"test_{name}", f"test_{name}_cured"} <= TESTS


@pytest.mark.parametrize("name", [name for name in catalog.names() if name.endswith("_cured")])
def test_a_cure_changes_little(name):
    changes = catalog.diff(name.removesuffix("_cured"), name).text.splitlines()[2:]
    assert 0 < sum(line[0] in "+-" for line in changes) <= 8, "\n".join(changes)
