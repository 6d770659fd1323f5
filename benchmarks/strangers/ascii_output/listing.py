import os
import subprocess
import sys


def test_listing():
    command = [sys.executable, "-m", "pytest_distbench.commands.cli", "baseline", "list"]
    variables = os.environ | ({"PYTHONIOENCODING": "ascii"} if os.environ.get("PLANTED") else {})
    done = subprocess.run(command, env=variables, capture_output=True, check=False)
    print(done.stdout.decode("utf-8"), done.stderr.decode("utf-8"))

    assert done.returncode == 0
