from pathlib import Path


def test_plant():
    """Somebody else's store, which nobody has looked at."""
    [path] = Path("baselines").rglob("*.json")
    text = path.read_text()
    assert '"foreign"' in text
    path.write_text(text.replace('"foreign"', '"x\\n::error file=a::planted\\u001b[2J"'))
