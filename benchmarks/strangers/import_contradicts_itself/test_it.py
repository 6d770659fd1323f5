def body(rank):
    rank.record("value", 3.0, better="exact")


def test_it(distbench):
    distbench.run(body)
