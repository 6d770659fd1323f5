def body(rank):
    rank.record("bytes", 4096, better="exact")


def test_it(distbench):
    distbench.run(body)
