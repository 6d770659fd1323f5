"""An all_reduce that overlaps with matrix multiplications: the exposed part is what a training would wait for."""


def test_overlap(communication, tolerance, distbench):
    """On CPUs 4 MiB with 8 products of 256 x 256; on GPUs 256 MiB with 8 of 4096 x 4096."""
    on_gpus = {"message_bytes": 256 * 2**20, "matrix": 4096, "dtype": "bfloat16"}
    communication.overlap(**(on_gpus if distbench.device == "cuda" else {}), tolerance=tolerance)
