"""What people state of a run: read strictly, and stored without secrets and addresses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_distbench.errors import StoredFileError
from pytest_distbench.machine.addresses import host_name
from pytest_distbench.machine.secrets import MASK
from pytest_distbench.records.experiment import Experiment, Statement
from pytest_distbench.store.experiment import read_experiment

STATED = """\
description = "1 node, 1 GPU, with an object store"
behind_gateway = true
servers = 2
addresses = "node1.example.org, 10.1.2.3"
storage = \"\"\"
Object store at https://me:s3cr3t@s3.example.net
password: s3cr3tValue
\"\"\"

[planned]
torch = 2.15

[test."test_resnet*"]
cluster_info = "ssh ada@login.example.org, 10.1.2.4"
"""


def written(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(content)
    return path


def test_what_is_stored_has_no_secret_and_no_address(tmp_path: Path) -> None:
    assert read_experiment(written(tmp_path, STATED), with_addresses=False) == Experiment(
        statements=[
            Statement(
                fields={
                    "description": "1 node, 1 GPU, with an object store",
                    "storage": f"Object store at https://s3.example.net password: {MASK}",
                    "behind_gateway": "yes",
                    "servers": "2",
                }
            ),
            Statement(of="test_resnet*", fields={"cluster_info": f"ssh ada@{MASK}, {MASK}"}),
        ],
        planned={"torch": "2.15"},
    )


def test_addresses_are_kept_where_they_are_asked_for_and_secrets_never(tmp_path: Path) -> None:
    own, of_all, of_one = read_experiment(written(tmp_path, STATED), with_addresses=True).statements

    assert own.fields == {"addresses": host_name()}
    assert of_all.fields["addresses"] == "node1.example.org, 10.1.2.3"
    assert of_one.fields["cluster_info"] == "ssh ada@login.example.org, 10.1.2.4"
    assert "s3cr3t" not in str(of_all)


def test_without_a_file_nothing_is_stated_but_the_machines_name_where_that_is_asked_for() -> None:
    assert read_experiment(None, with_addresses=False) == Experiment()
    assert read_experiment(None, with_addresses=True).stated("t.py::t") == {"addresses": host_name()}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("cluser = 'a'", "cluser: wanted one of the keys planned, test, description, storage, "),
        ("cluster = ['a']", "cluster: wanted text, a number, true or false; found ['a']"),
        ("cluster = ' '", "cluster: wanted text, a number, true or false; found ' '"),
        ("servers = -3", "servers: wanted a whole number of at least 1; found -3"),
        ("servers = true", "servers: wanted a whole number of at least 1; found True"),
        ("behind_gateway = 'maybe'", "behind_gateway: wanted true or false; found 'maybe'"),
        ("test = 'a'", "test: wanted tables [test.NAME]; found 'a'"),
        ("[test.a]\nclusters = 1", "test.a.clusters: wanted one of the keys description, "),
        ("planned = 2", "planned: wanted names of what the table environment has"),
        ("[planned]\ntorch = []", "planned: wanted names of what the table environment has"),
    ],
)
def test_what_is_wrong_is_told_with_its_key(tmp_path: Path, content: str, problem: str) -> None:
    path = written(tmp_path, content)

    with pytest.raises(StoredFileError, match=re.escape(f"{path}: {problem}")) as told:
        read_experiment(path, with_addresses=False)

    assert str(told.value).endswith("docs/experiment.md has an example, and what each key means")
