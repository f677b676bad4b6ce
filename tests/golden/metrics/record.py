"""Record what scikit-learn says of predictions; tests/python/test_metrics.py compares.

pip install scikit-learn; python tests/golden/metrics/record.py
"""

import json
from pathlib import Path

import numpy as np
import sklearn
from sklearn.metrics import f1_score, precision_score, recall_score, roc_auc_score

AVERAGES = {"macro": "macro", "micro": "micro", "weighted": "weighted", "none": None}


def cases() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Scores and targets by name; scores have ties."""
    rng = np.random.default_rng(11)
    scores = np.round(rng.standard_normal((97, 4)) * 4).astype(np.float32) / 4
    targets = rng.integers(0, 4, 97)
    powers = np.exp(scores.astype(np.float64))
    return {
        "scores": (scores, targets),
        "probabilities": ((powers / powers.sum(1, keepdims=True)).astype(np.float32), targets),
        "two": (scores[:, :2], targets % 2),
        "one": (scores[:, :1], targets % 2),
    }


def values(name: str, scores: np.ndarray, targets: np.ndarray) -> dict[str, object]:
    """Each metric by its name and average."""
    classes = scores.shape[1]
    if classes <= 2:
        ranked = scores[:, -1] - (scores[:, 0] if classes == 2 else 0)
        guesses = (ranked > 0).astype(int)
        found: dict[str, object] = {"auc macro": roc_auc_score(targets, ranked)}
    else:
        guesses = scores.argmax(1)
        each = scores.astype(np.float64)
        if name == "scores":
            powers = np.exp(each - each.max(1, keepdims=True))
            each = powers / powers.sum(1, keepdims=True)
        areas = [roc_auc_score(targets == c, each[:, c]) for c in range(classes)]
        found = {"auc none": areas, "auc macro": float(np.mean(areas))}
    for metric, score in (("precision", precision_score), ("recall", recall_score), ("f1", f1_score)):
        for own, average in AVERAGES.items():
            value = score(targets, guesses, average=average, zero_division=0)
            found[f"{metric} {own}"] = value.tolist() if average is None else float(value)
    return found


def main() -> None:
    """Write the file."""
    recorded = {
        name: {"scores": scores.tolist(), "targets": targets.tolist(), "values": values(name, scores, targets)}
        for name, (scores, targets) in cases().items()
    }
    text = json.dumps({"scikit-learn": sklearn.__version__, "cases": recorded})
    (Path(__file__).parent / "sklearn.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
