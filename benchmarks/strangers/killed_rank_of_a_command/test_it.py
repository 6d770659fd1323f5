from pytest_distbench.read import stdout


def test_it(distbench):
    command = "torchrun --standalone --nproc-per-node=2 train.py 2>&1 | tee log.txt"
    distbench.run(["bash", "-c", command], read={"loss": stdout(r"loss (\S+)", better="exact")}, tolerance=5)
