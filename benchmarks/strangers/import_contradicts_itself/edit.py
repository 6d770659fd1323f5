from pathlib import Path

line = Path("all.json").read_text()
Path("all.json").write_text(line + line.replace("3.0", "4.0"))
