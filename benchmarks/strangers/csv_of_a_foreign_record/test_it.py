def body(rank):
    for name in ("=1+1", "foreign"):
        rank.record(name, -2, better="exact")


def test_it(distbench):
    distbench.run(body)
