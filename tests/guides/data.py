"""The session and files that the Python of docs/data.md uses."""

from pathlib import Path

from PIL import Image

import trainweb

session = trainweb.TrainingSession.from_model("base.onnx", loss="CrossEntropyLoss", optimizer="AdamW")
COLOURS = ("red", "blue", "green", "white", "black", "grey", "pink", "brown")
lines = [
    f"{k},2,{'' if k % 9 == 1 else 20 + k},{1500 + 70 * k},{COLOURS[k % 8]},{('setosa', 'other')[k % 2]}"
    for k in range(40)
]
for name in ("iris.csv", "people.csv"):
    Path(name).write_text("\n".join(["length,width,age,income,colour,kind", *lines]) + "\n")
for name in ("cat", "dog"):
    Path("photographs", name).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(Path("photographs", name, "1.png"))
