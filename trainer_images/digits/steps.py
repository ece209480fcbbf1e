"""The steps of a pipeline before and after the training of digits (kubeflow_pipelines/examples/digits.py).

    python steps.py prepare FOLDER OUTPUT           writes train.csv.gz and held_out.csv.gz to FOLDER/data
    python steps.py evaluate FOLDER HIDDEN OUTPUT PAGE
                                                    accuracy of the newest checkpoint in FOLDER, and where it errs

The result (the folder, the accuracy) is written to the file OUTPUT, as KFP requires; PAGE is a page for people.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from digits import Network, digits

from elastic_tfjob.runtime import ElasticCheckpoint

SIDE = 8


def shifted(images: np.ndarray, by: int) -> np.ndarray:
    """Each image (n, 64), shifted `by` pixels to the right (below 0: to the left) and filled with black."""
    squares = images.reshape(-1, SIDE, SIDE)
    moved = np.zeros_like(squares)
    kept, taken = (slice(max(by, 0), SIDE + min(by, 0)), slice(max(-by, 0), SIDE + min(-by, 0)))
    moved[:, :, kept] = squares[:, :, taken]
    return moved.reshape(-1, SIDE * SIDE)


def prepare(folder: str, output: str) -> None:
    """Write three images for each training image: itself, and shifted a pixel to each side. Held-out images are
    unchanged."""
    images, held_out, labels, held_out_labels = digits()
    place = Path(folder) / "data"
    place.mkdir(parents=True, exist_ok=True)
    place.parent.chmod(0o777)  # the job's replicas may run as another user than this step
    more = np.concatenate([shifted(images, by) for by in (0, 1, -1)])
    for name, pixels, answers in (("train", more, np.tile(labels, 3)), ("held_out", held_out, held_out_labels)):
        np.savetxt(place / f"{name}.csv.gz", np.column_stack([pixels * 16, answers]), fmt="%d", delimiter=",")
        print(f"{len(answers)} images: {place / name}.csv.gz")
    write(output, folder)


def evaluate(folder: str, hidden: str, output: str, page: str) -> None:
    """Measure the accuracy of the newest checkpoint on the held-out images."""
    network = Network(int(hidden))
    step = ElasticCheckpoint(tf.train.Checkpoint(network=network), folder).resume()
    if not step:
        sys.exit(f"no checkpoint in {folder}")
    _, images, _, labels = digits(str(Path(folder) / "data"))
    said = tf.argmax(network(images), axis=1).numpy()
    counts = tf.math.confusion_matrix(labels, said, num_classes=10).numpy()
    accuracy = float(np.mean(said == labels))
    print(f"{accuracy:.4f} after {step} steps")
    write(output, f"{accuracy:.4f}")
    head = "".join(f"<th>{digit}" for digit in range(10))
    rows = "".join(f"<tr><th>{k}" + "".join(f"<td>{n or ''}" for n in row) for k, row in enumerate(counts))
    write(
        page,
        f"<h1>{accuracy:.1%} of {len(labels)} digits</h1><table><caption>written (rows), read (columns)"
        f"<tr><th>{head}{rows}</table>",
    )


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


if __name__ == "__main__":
    {"prepare": prepare, "evaluate": evaluate}[sys.argv[1]](*sys.argv[2:])
