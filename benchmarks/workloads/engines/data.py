"""Synthetic pictures, objects, texts and models for scripts of others: ``python data.py FOLDER``. The same sizes everywhere."""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[3]))
from benchmarks.wild import data as texts_and_models


def make_objects(root: pathlib.Path) -> None:
    """As COCO lies on disk: photographs of several sizes, each with some objects and their outlines."""
    from PIL import Image

    draw = np.random.default_rng(0)
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 24), ("val", 8)):
        (root / f"{split}2017").mkdir(exist_ok=True)
        images, objects = [], []
        for number in range(count):
            width, height = ((640, 480), (480, 640), (640, 427), (500, 375))[number % 4]
            name = f"{number:012}.jpg"
            Image.fromarray(draw.integers(0, 255, (height, width, 3), dtype=np.uint8)).save(root / f"{split}2017" / name)
            images.append({"id": number, "file_name": name, "width": width, "height": height})
            for _ in range(2 + number % 9):
                x, y = (int(draw.integers(0, side - 120)) for side in (width, height))
                w, h = (int(draw.integers(24, 118)) for _ in range(2))
                objects.append(
                    {
                        "id": len(objects) + 1,
                        "image_id": number,
                        "category_id": int(draw.integers(1, 91)),
                        "bbox": [x, y, w, h],
                        "area": w * h,
                        "iscrowd": 0,
                        "segmentation": [[x, y, x + w, y, x + w, y + h, x, y + h]],
                    }
                )
        kinds = [{"id": number, "name": str(number)} for number in range(1, 91)]
        said = {"info": {}, "images": images, "annotations": objects, "categories": kinds}
        (root / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(said))


def make(root: pathlib.Path) -> None:
    """Once: a folder that is complete is left as it is."""
    if (root / "complete").exists():
        return
    make_objects(root / "coco")
    texts_and_models.make_texts(root / "texts")
    texts_and_models.make_images(root / "images")
    texts_and_models.make_models(root / "models")
    (root / "complete").touch()


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]).absolute())
