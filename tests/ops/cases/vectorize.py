"""Cases of trainweb.ops.vectorize."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import i64

from trainweb.errors import UnsupportedError
from trainweb.ops import vectorize

WORDS = {
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 1,
    "mode": "TF",
    "ngram_counts": [0, 3],
    "ngram_indexes": [0, 2, 1, 5, 3, 4],
    "pool_int64s": [2, 3, 5, 5, 6, 2, 2, 6, 7],
}
ROW = [2, 2, 3, 5, 6, 6]

CASES[vectorize.TfIdfVectorizer] = Cases(
    samples=(
        Sample([i64([ROW, [7, 5, 6, 7, 5, 6]])], WORDS),
        Sample([i64(ROW)], {**WORDS, "mode": "TFIDF", "weights": [0.5, 2.0, 1.5, 3.0, 0.25, 1.0]}),
        Sample([i64([ROW])], {**WORDS, "mode": "IDF", "weights": [0.5, 2.0, 1.5, 3.0, 0.25, 1.0], "max_skip_count": 3}),
        Sample([i64([2])], {**WORDS, "min_gram_length": 2}),
    ),
    bad=(
        Bad([(2, 3)], WORDS, UnsupportedError),
        Bad([i64(ROW)], {**WORDS, "mode": "BM25"}),
        Bad([i64(ROW)], {**WORDS, "ngram_counts": [0, 4]}),
        Bad([i64(ROW)], {**WORDS, "ngram_indexes": [0, 0, 1, 2, 3, 4]}),
        Bad([i64(ROW)], {k: v for k, v in WORDS.items() if k != "mode"}),
    ),
)
