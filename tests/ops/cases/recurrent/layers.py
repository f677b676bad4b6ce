"""Cases of trainweb.ops.recurrent.layers."""

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.literals import i32

from trainweb.ops.recurrent import layers

CASES[layers.RNN] = Cases(
    samples=(
        Sample([(4, 2, 3), (1, 5, 3), (1, 5, 5)]),
        Sample([(3, 2, 3), (2, 5, 3), (2, 5, 5), (2, 10), i32([3, 1])], {"direction": "bidirectional"}),
        Sample([(2, 3, 3), (1, 5, 3), (1, 5, 5)], {"layout": 1, "direction": "reverse"}),
        Sample(
            [(3, 2, 3), (1, 4, 3), (1, 4, 4), (1, 8), None, (1, 2, 4)],
            {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]},
        ),
        Sample([(3, 2, 3), (1, 4, 3), (1, 4, 4)], {"activations": ["ScaledTanh"], "clip": 5.0}),
    ),
    bad=(
        Bad([(4, 2, 3), (1, 5, 4), (1, 5, 5)]),
        Bad([(4, 2, 3), (1, 5, 3), (1, 5, 5)], {"direction": "up"}),
        Bad([(4, 2, 3), (1, 5, 3), (1, 5, 5)], {"hidden_size": 4}),
        Bad([(4, 2, 3), (1, 5, 3), (1, 5, 5)], {"activations": ["Tanh", "Tanh"]}),
    ),
)

CASES[layers.GRU] = Cases(
    samples=(
        Sample([(4, 2, 3), (1, 15, 3), (1, 15, 5)]),
        Sample([(3, 2, 3), (1, 12, 3), (1, 12, 4), (1, 24), None, (1, 2, 4)], {"linear_before_reset": 1}),
        Sample([(3, 2, 3), (2, 12, 3), (2, 12, 4), (2, 24), i32([3, 2])], {"direction": "bidirectional"}),
        Sample([(2, 3, 3), (1, 12, 3), (1, 12, 4)], {"layout": 1, "activations": ["HardSigmoid", "Softsign"]}),
        Sample([(3, 2, 3), (1, 12, 3), (1, 12, 4), (1, 24)], {"clip": 6.0, "direction": "reverse"}),
    ),
    bad=(
        Bad([(4, 2, 3), (1, 15, 3), (1, 15, 5), (1, 15)]),
        Bad([(4, 2, 3), (1, 15, 3), (2, 15, 5)]),
    ),
)

CASES[layers.LSTM] = Cases(
    samples=(
        Sample([(4, 2, 3), (1, 20, 3), (1, 20, 5)]),
        Sample([(3, 2, 3), (1, 16, 3), (1, 16, 4), (1, 32), None, (1, 2, 4), (1, 2, 4), (1, 12)]),
        Sample([(3, 2, 3), (2, 16, 3), (2, 16, 4), (2, 32), i32([3, 2])], {"direction": "bidirectional"}),
        Sample([(2, 3, 3), (1, 16, 3), (1, 16, 4)], {"layout": 1, "direction": "reverse", "input_forget": 1}),
        Sample([(3, 2, 3), (1, 16, 3), (1, 16, 4)], {"clip": 6.0, "activations": ["Sigmoid", "Elu", "LeakyRelu"]}),
    ),
    bad=(
        Bad([(4, 2, 3), (1, 20, 3), (1, 20, 5), None, None, (1, 3, 5)]),
        Bad([(4, 2, 3), (1, 20, 3), (1, 20, 5), None, None, None, None, (1, 10)]),
    ),
)
