from pytest_distbench.read import stdout


def test_it(distbench):
    command = "torchrun --standalone --nproc-per-node=2 train.py | tee log; exit 0"
    read = {"step": stdout(r"took (\S+) ms", scale=1e-3, unit="s", better="lower")}
    distbench.run(["bash", "-c", command], read=read, tolerance=5)
