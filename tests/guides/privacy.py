"""The rows that the Python of docs/privacy.md uses."""

import numpy as np

points = np.sin(37 * np.arange(384)).astype(np.float32).reshape(192, 2)
labels = (np.hypot(points[:, 0], points[:, 1]) < 0.8).astype(np.int64)
