def body(rank):
    rank.record("answer", 1, better="exact")


def test_same(distbench):
    distbench.run(body)
