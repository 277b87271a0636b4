"""environment.yml and pyproject.toml name the same packages with the same ranges."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
CONDA_NAME = {"matplotlib-base": "matplotlib"}  # conda-forge's matplotlib without the Qt desktop toolkit


def pinned(lines):
    """{name: range} of requirement lines like "torch>=2.14.1,<2.15"."""
    pairs = (re.fullmatch(r"([A-Za-z0-9_.-]+)\s*(.*)", line).groups() for line in lines)
    return {CONDA_NAME.get(name, name): wanted for name, wanted in pairs}


def pyproject():
    """(its text, {name: range} of the dependencies and the test extra); tomllib is not in Python 3.10."""
    text = (ROOT / "pyproject.toml").read_text()
    blocks = re.findall(r"^(?:dependencies|test) = \[\n(.*?)^\]", text, re.M | re.S)
    assert len(blocks) == 2
    return text, pinned(re.findall(r'^ *"([^"]+)"', "".join(blocks), re.M))


def conda():
    """(packages from conda-forge, packages from pip), each {name: range}, and pip's options."""
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["channels"][0] == "conda-forge"
    *packages, last = environment["dependencies"]
    from_pip = [line for line in last["pip"] if not line.startswith("-")]
    return pinned(packages), pinned(from_pip), [line for line in last["pip"] if line.startswith("-")]


def test_both_name_the_same_packages_with_the_same_ranges():
    packages, from_pip, _ = conda()
    del packages["pip"], packages["python"]
    assert {**packages, **from_pip} == pyproject()[1]
    assert not set(packages) & set(from_pip)


def test_both_take_the_same_pythons():
    assert f'requires-python = "{conda()[0]["python"]}"' in pyproject()[0]


def test_torch_comes_from_pip_and_the_project_is_editable():
    _, from_pip, options = conda()
    assert {"torch", "torchvision"} <= set(from_pip)
    assert options in (["--editable ."], ["-e ."])
