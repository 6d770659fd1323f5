"""A real Slurm of several hosts, which are namespaces of this one, with pytest on its login node.

``python slurm_cluster.py NODES -- COMMAND...`` brings the cluster up, runs the command on the login node, and takes all
of it down again, however the command ends: it lives in a process namespace whose first process this one is. Needs the
Debian packages slurmctld, slurmd, slurm-client, munge and slurm-wlm-basic-plugins, and namespaces.

While the command runs, a file ``node2.dies`` in the folder that DISTBENCH_TEST_SLURM names ends that host, and
``node2.parts`` takes its network away for a while; the files vanish when that is done.

What made it work: a slurmd needs a network and a host name of its own, and sees /sys/fs/cgroup (``ip netns exec`` hides
that); ``SlurmdParameters=config_overrides`` lets nodes claim more CPUs than there are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "ip", "unshare")
NETWORK = "10.77.0"
HEAD = "head"
GPUS = 4
"""Number of GPUs that each node claims to have."""
_UP_S = 30.0
PARTED_S = 30.0
"""How long the network of a host is away: longer than its silence is borne."""
_PAUSE = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print(flush=True); signal.pause()"

CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={head}({network}.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout={lost_s}
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
PropagateResourceLimits=NONE
KillWait=5
UnkillableStepTimeout=30
NodeName=node[1-{nodes}] NodeAddr={network}.[11-{last}] CPUs=8 RealMemory=4000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no cluster here, or ""."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"{', '.join(missing)} not installed (apt-get install slurmctld slurmd slurm-client munge iproute2)"
    if os.geteuid():
        return "not root, as whom alone slurmd starts tasks"
    done = subprocess.run([*_spaces(), "true"], capture_output=True, text=True, check=False)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


def command_of(nodes: int, command: Sequence[str]) -> list[str]:
    """What runs a command on the login node of a cluster that lives as long as it does."""
    return [*_spaces(), sys.executable, __file__, str(nodes), "--", *command]


def _spaces() -> list[str]:
    return ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]


def main() -> int:
    """Up, run, down: in namespaces of its own, so that nothing of this machine changes."""
    nodes, command = int(sys.argv[1]), sys.argv[3:]
    if os.getpid() != 1:  # the first process of a process namespace is
        if told := why_not():
            raise SystemExit(f"no Slurm here: {told}")
        os.execvp("unshare", command_of(nodes, command))
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    with tempfile.TemporaryDirectory(prefix="slurm-", dir="/tmp") as made:
        folder = Path(made)
        folder.chmod(0o755)
        variables = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "DISTBENCH_TEST_SLURM": str(folder)}
        bring_up(folder, nodes, variables)
        with subprocess.Popen(command, env=variables) as running:
            while running.poll() is None:
                do_to_nodes(folder)
                time.sleep(0.05)
        code = running.returncode
        os.kill(-1, signal.SIGKILL)  # all in our namespace, so that nobody writes into the folder
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        return code


def bring_up(folder: Path, nodes: int, variables: dict[str, str]) -> None:
    """Start network, munge, controller, and a slurmd on each node; returns when all are idle, else SystemExit."""
    for name in ("munge", "state"):
        (folder / name).mkdir(mode=0o711)
    hosts = [f"{NETWORK}.1 {HEAD}", *(f"{NETWORK}.{10 + i} node{i}" for i in range(1, nodes + 1))]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            head=HEAD,
            network=NETWORK,
            user="root",
            folder=folder,
            nodes=nodes,
            last=10 + nodes,
            lost_s=300,
            gpus=GPUS,
        )
    )
    devices = [folder / f"gpu{i}" for i in range(GPUS)]
    for device in devices:
        device.touch()  # of GPUs that nothing uses
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
    version = 2 if Path("/sys/fs/cgroup/cgroup.controllers").exists() else 1
    more = "IgnoreSystemd=yes\n" if version == 2 else ""
    (folder / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/v{version}\n{more}")
    _run("mount", "--bind", str(folder / "hosts"), "/etc/hosts")
    _run("hostname", HEAD)
    for link in ("lo up", "add br0 type bridge", "br0 up"):
        _run("ip", "link", *(["set", *link.split()] if link.endswith("up") else link.split()))
    _run("ip", "address", "add", f"{NETWORK}.1/24", "dev", "br0")
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    files = [f"--{what}-file={folder}/munge/{what}" for what in ("key", "pid", "log", "seed")]
    _run("munged", "--force", f"--socket={folder}/munge/socket", *files, "--num-threads=2")
    _run("slurmctld", "-i", variables=variables)
    for i in range(1, nodes + 1):
        add_node(folder, i, variables)
    deadline = time.monotonic() + _UP_S
    while _idle(variables) < nodes:
        if time.monotonic() > deadline:
            logs = "\n".join(f"{path}: {path.read_text()[-800:]}" for path in sorted(folder.glob("slurm*.log")))
            raise SystemExit(f"not all of {nodes} nodes are idle after {_UP_S:.0f} s\n{logs}")
        time.sleep(0.05)


def add_node(folder: Path, number: int, variables: dict[str, str]) -> None:
    """A host: the first process of its namespaces, whose end is that of the host; its process id lies in a file."""
    spaces = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    known = (folder / "hosts").read_text().replace(f"{NETWORK}.{10 + number} ", "127.0.1.1 ")  # as Debian writes it
    (folder / f"hosts.node{number}").write_text(known)
    names = f"mount --bind {folder}/hosts.node{number} /etc/hosts && hostname node{number}"
    begin = f"{names} && ip link set lo up && exec {sys.executable} -c '{_PAUSE}'"
    init = subprocess.Popen([*spaces, "sh", "-c", begin], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert init.stdout is not None
    if not init.stdout.readline():
        raise SystemExit(f"node{number} did not start")
    [first] = subprocess.run(["pgrep", "-P", str(init.pid)], capture_output=True, text=True, check=True).stdout.split()
    (folder / f"node{number}.init").write_text(first)
    (folder / f"spool.node{number}").mkdir()
    _run("ip", "link", "add", f"v{number}", "type", "veth", "peer", "name", "eth0", "netns", first)
    _run("ip", "link", "set", f"v{number}", "master", "br0", "up")
    there = ["nsenter", f"--target={first}", "--net", "--uts", "--mount", "--pid"]
    _run(*there, "ip", "address", "add", f"{NETWORK}.{10 + number}/24", "dev", "eth0")
    _run(*there, "ip", "link", "set", "eth0", "up")
    _run(*there, "slurmd", "-N", f"node{number}", variables=variables)


def do_to_nodes(folder: Path) -> None:
    """What files ask for."""
    for wish in folder.glob("node*.dies"):
        os.kill(int(wish.with_suffix(".init").read_text()), signal.SIGKILL)
        wish.unlink()
    for wish in folder.glob("node*.parts"):
        link = wish.stem.replace("node", "v")
        since = time.time() - wish.stat().st_mtime
        _run("ip", "link", "set", link, "up" if since > PARTED_S else "down")
        if since > PARTED_S:
            wish.unlink()


def _idle(variables: dict[str, str]) -> int:
    done = subprocess.run(
        ["sinfo", "-h", "-t", "idle", "-o", "%D"], env=variables, capture_output=True, text=True, check=False
    )
    return sum(map(int, done.stdout.split()))


def _run(*words: str, variables: dict[str, str] | None = None) -> None:
    done = subprocess.run(words, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


if __name__ == "__main__":
    sys.exit(main())
