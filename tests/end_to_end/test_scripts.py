"""Scripts and test bodies that know nothing of the plugin, with real process groups."""

from __future__ import annotations

import re

import pytest
from support.launching import RunInside

from pytest_distbench.store.files import read_run_record

pytestmark = pytest.mark.spawn

TRAIN = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from pytest_distbench import phase, record
    from settings import RATE
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    target = torch.ones(8, 1)
    print("data:", open("data/tokens.txt").read())
    print("where:", os.getcwd(), sys.argv[1:], os.environ.get("WORDS"))
    print("resuming" if os.path.exists("snapshot.pt") else "from scratch")
    for step in range(12):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        with phase("forward"):
            loss = (model(x) - x @ target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record("gradient", model.module.weight.grad.norm(), better="curve")
        worse = float(os.environ.get("WORSE", "0")) if step >= 5 else 0.0
        print(f"iter {step}: loss {loss.item() * (1 + worse):.4f}, time 10.0ms")
    torch.save(model.state_dict(), "snapshot.pt")
    dist.destroy_process_group()
"""

TEST = r"""
    import os, sys
    import pytest
    from pytest_distbench.read import stdout

    READ = {
        "loss_curve": stdout(r"iter \d+: loss ([\d.]+)", better="curve", first=10),
        "final_loss": stdout(r"loss ([\d.]+)", better="same"),
        "step_time": stdout(r"time ([\d.]+)ms", scale=1e-3, unit="s", skip=2, better="lower"),
    }

    def test_train(distbench, tmp_path):
        run = distbench.run(
            "scripts/train.py",
            args=["--out={launch_dir}/out", f"--log={tmp_path}", "--seed={seed}"],
            env={"WORDS": "{world_size} ranks"},
            seeds=[3],
            read=READ,
            launches=2,
        )
        for launch in run.launches:
            text = launch.output(0)
            assert "data: tokens" in text and "from scratch" in text and "2 ranks" in text and "--seed=3" in text
            assert "{" not in text.partition("where:")[2].partition("resuming")[0].splitlines()[0]
        assert set(run.launches[0].fingerprints) == {"optimizer_step"}
        names = {m.key for m in run.launches[0].measurements}
        assert names >= {"loss_curve", "final_loss", "step_time", "wall_time", "gradient", "phase/forward"}
        assert [part.path for part in run.launches[0].breakdowns["wall_time"].parts] == [["forward"]]

    def test_module(distbench):
        distbench.check(module="package.main", args=["3"])

    def test_installed_module(distbench):
        distbench.check(module="json.tool", args=["data.json"], makes_group=False)

    def test_own_folder(distbench):
        distbench.check("scripts/leaves.py", cwd="scripts")

    def test_nothing(distbench):
        distbench.run("scripts/gives_up.py")

    def test_meant(distbench):
        read = {"gpus": stdout(r"locate (\d)")}
        run = distbench.check("scripts/gives_up.py", makes_group=False, read=read)
        assert run.values("gpus") == [2.0]
"""

FILES = {
    "data.json": "{}",
    "scripts/train.py": TRAIN,
    "scripts/settings.py": "RATE = 0.05\n",
    "scripts/data/tokens.txt": "tokens",
    "scripts/gives_up.py": "print('Unable to locate 2 gpus. Exiting')\n",
    "scripts/leaves.py": """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        open(f"left{dist.get_rank()}.txt", "w").close()
        dist.barrier()  # else one may leave while the other still connects
        dist.destroy_process_group()
    """,
    "package/__init__.py": "",
    "package/main.py": """
        import sys
        import torch.distributed as dist
        from .inner import WORLD
        dist.init_process_group("gloo")
        assert (__name__, __package__, sys.argv[1:], WORLD) == ("__main__", "package", ["3"], 2)
        assert sys.argv[0] == __file__
        dist.barrier()
        dist.destroy_process_group()
    """,
    "package/inner.py": "WORLD = 2\n",
}


def write(pytester: pytest.Pytester, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = text.splitlines()
        indents = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
        path.write_text("\n".join(line[min(indents, default=0) :] for line in lines))


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\naddopts = -p no:cacheprovider")
    return pytester


def test_an_unchanged_script_gives_numbers_that_are_judged(
    project: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {**FILES, "test_scripts.py": TEST})
    only = ("-k", "test_train", "--distbench-out", "out")

    run_inside(*only, "--distbench-update=new").assert_outcomes(passed=1)
    assert not (project.path / "scripts" / "snapshot.pt").exists()
    logs = sorted(p.parent.name for p in (project.path / "out" / "logs").rglob("rank0.log"))
    assert logs == sorted(f"launch{i}" for i in range(1, 11))
    again = run_inside(*only)
    again.assert_outcomes(passed=1)
    assert "not comparable" not in again.stdout.str()  # tmp_path is another one

    monkeypatch.setenv("WORSE", "0.01")
    worse = run_inside(*only)
    worse.assert_outcomes(failed=1)
    worse.stdout.fnmatch_lines(["loss_curve: diverges at value 6 (iter 5: loss *), differs by up to 1.0 %*"])


def test_a_script_may_be_a_module_and_one_that_does_nothing_fails(
    project: pytest.Pytester, run_inside: RunInside
) -> None:
    write(project, {**FILES, "test_scripts.py": TEST})
    found = run_inside("-k", "not test_train", "-rA", "-W", "default")

    found.assert_outcomes(passed=4, failed=1, warnings=1)
    text = found.stdout.str()
    assert "no rank joined a process group of 2: it ended without one, and each may have trained alone" in text
    assert "    | Unable to locate 2 gpus. Exiting" in text
    assert re.search(
        r"DistbenchWarning: left left0.txt, left1.txt in \S+/scripts, where later launches may read it", text
    )
    assert "N" not in text.splitlines()[0]  # a check is no measurement


BODIES = """
    import sys
    from pathlib import Path
    import pytest
    import torch
    import torch.distributed as dist

    class TestOfAClass:
        world_size = 2
        rate = 0.5

        @pytest.fixture(autouse=True)
        def prepare(self):
            self.text, self.model = "from the test", torch.nn.Linear(1, 1)

        @staticmethod
        def plain(rank, dtype):
            assert torch.ones(1, dtype=getattr(torch, dtype)).dtype != torch.float32

        def bound(self, rank):
            assert (self.rate, self.text, rank.world_size) == (0.5, "from the test", 2)

        def test_static(self, distbench):
            distbench.check(self.plain, params={"dtype": "float64"})

        def test_bound(self, distbench):
            distbench.check(self.bound)

    def save(rank, folder):
        if rank.rank == 0:
            torch.save(torch.arange(8), Path(folder, "state.pt"))

    def load(rank, folder):
        assert torch.load(Path(folder, "state.pt")).numel() == 8
        assert dist.get_world_size() == 3

    @pytest.mark.world_size(3)
    def test_save_on_one_size_and_load_on_another(distbench, tmp_path):
        distbench.check(save, world_size=2, params={"folder": tmp_path})
        distbench.check(load, world_size=3, params={"folder": tmp_path})

    def no_accelerator(rank):
        from torch.testing._internal.common_distributed import TEST_SKIPS

        sys.exit(TEST_SKIPS["no_cuda"].exit_code)

    def test_torch_s_own_skips(distbench):
        distbench.check(no_accelerator)

    def fails(rank):
        rank.record("number", 1.0, better="lower")
        assert rank.rank == 0

    def test_fails(distbench):
        distbench.check(fails)

    def other_code(rank):
        sys.exit(77)

    def test_another_exit_code_is_no_skip(distbench):
        distbench.check(other_code)
"""


def test_bodies_of_tests_that_measure_nothing(project: pytest.Pytester) -> None:
    write(project, {"test_bodies.py": BODIES})
    found = project.runpytest_subprocess("--world-size", "3", "-rs", "--distbench-no-baseline", "fail")

    found.assert_outcomes(passed=3, skipped=1, failed=2)
    text = found.stdout.str()
    assert "CUDA is not available." in text
    assert "assert rank.rank == 0" in text
    assert "SystemExit" in text
    assert not list(project.path.rglob("baselines/**/*.json"))


UPWARDS = """
    import sys

    def test_command(distbench):
        distbench.check([sys.executable, "../scripts/reads.py", "--data=../data.json", ".."], makes_group=False)

    def test_script(distbench):
        distbench.check("../scripts/reads.py", args=["--data=../data.json", "../settings"], makes_group=False)
"""


def test_paths_that_lead_up_from_the_folder_of_a_command_or_script_lead_there(
    project: pytest.Pytester, run_inside: RunInside
) -> None:
    """Each launch has a folder elsewhere, with links into that one; a baseline is known by the words of the test."""
    reads = "import sys; print(open(sys.argv[1].removeprefix('--data=')).read())"
    write(project, {"data.json": "{}", "settings/a": "", "scripts/reads.py": reads, "tests/test_up.py": UPWARDS})
    found = run_inside("--distbench-json", "run.json")

    found.assert_outcomes(passed=2)
    by_test = {r.case.test.rpartition("::")[2]: r.case for r in read_run_record(project.path / "run.json").results}
    assert by_test["test_command"].params["args"][1:] == ["../scripts/reads.py", "--data=../data.json", ".."]
    assert by_test["test_script"].params["args"] == ["--data=../data.json", "../settings"]


OWN_GROUP = """
    import torch
    import torch.distributed as dist

    def makes_its_own(rank):
        rank.record("before", float(dist.is_initialized()), better="exact")
        dist.init_process_group("gloo")
        for _ in rank.timed("latency", warmup=2, iterations=3):
            dist.all_reduce(torch.ones(1))
        rank.barrier()
        dist.destroy_process_group()

    def test_own_group(distbench):
        run = distbench.measure(makes_its_own, makes_group=False)
        launch = run.launches[0]
        assert {m.name: m.value for m in launch.measurements}["before"] == 0.0
        assert set(launch.fingerprints) == {"latency"}

    def waits_without_one(rank):
        rank.barrier()

    def test_waits(distbench):
        distbench.check(waits_without_one, makes_group=False)

    def test_twice(distbench):
        distbench.check(makes_its_own)
"""


def test_a_body_may_make_its_own_group(project: pytest.Pytester, run_inside: RunInside) -> None:
    """Other frameworks' tests do; the rank's timings and barriers use that group, or say that there is none."""
    write(project, {"test_bodies.py": OWN_GROUP})
    found = run_inside()

    found.assert_outcomes(passed=1, failed=2)
    text = found.stdout.str()
    assert "2 ranks have to wait for one another here, and there is no process group: wanted after init" in text
    assert "next: remove init_process_group from the body, or let it make the group" in text


SECRET = "s3cr3t-of-the-test"
INHERITED = "an0ther-of-the-machine"

PRINTS_TOKENS = """
    import os

    print("tokens:", os.environ["HF_TOKEN"], os.environ["WANDB_API_KEY"])
    raise RuntimeError("refused: " + os.environ["HF_TOKEN"])
"""

TELLING_TEST = f"""
    import sys

    ENV = {{"HF_TOKEN": "{SECRET}"}}

    def test_ranks(distbench):
        distbench.check("tells.py", env=ENV)

    def test_command(distbench):
        distbench.check([sys.executable, "tells.py"], env=ENV)
"""


@pytest.mark.parametrize("options", [(), ("-s",)])
def test_secrets_that_a_script_prints_are_in_its_logs_alone(
    options: tuple[str, ...], project: pytest.Pytester, run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", INHERITED)
    write(project, {"tells.py": PRINTS_TOKENS, "test_scripts.py": TELLING_TEST})
    found = run_inside(*options, "--distbench-json", "run.json", "--distbench-out", "out")
    told = found.stdout.str() + found.stderr.str() + (project.path / "run.json").read_text()
    logs = "".join(path.read_text() for path in (project.path / "out" / "logs").rglob("rank*.log"))

    found.assert_outcomes(failed=2)
    assert "tokens: *** ***" in told
    assert "RuntimeError: refused: ***" in told
    assert SECRET not in told
    assert INHERITED not in told
    assert f"tokens: {SECRET} {INHERITED}" in logs
