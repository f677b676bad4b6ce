"""Cases of trainweb.ops.optim.rules: the first step and a later one, with the defaults and with other settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.ops.cases import CASES, Bad, Cases, Sample
from tests.ops.cases.optim.operators import (
    FIRST_MOMENTS,
    FOURTH_MOMENTS,
    GRADIENTS,
    PARAMETERS,
    SECOND_MOMENTS,
    THIRD_MOMENTS,
    UPDATES,
    update_at,
)
from tests.ops.literals import bools, f32, i64

from trainweb.errors import UnsupportedError
from trainweb.model.graph import Tensor
from trainweb.ops.optim import rules

MOMENTS = (FIRST_MOMENTS, SECOND_MOMENTS, THIRD_MOMENTS, FOURTH_MOMENTS)


def cases_with(rule: type[rules.Rule], *settings: Mapping[str, Any], moments: Sequence[Tensor] = MOMENTS) -> Cases:
    """Cases with the defaults and with each of `settings`; `moments` are in the order of the rule's `names`."""
    start = dict(zip(rule.names, moments, strict=False))

    def inputs(rate: float, step: int, case: Mapping[str, Any]) -> list[Tensor]:
        kept = [start[name] for name in rule.kept_with(case)]
        return [f32([rate]), i64([step]), PARAMETERS, GRADIENTS, *kept, *[PARAMETERS] * rule.averages]

    signalled = [f32([0.1]), i64([1]), *[PARAMETERS] * (len(rule.inputs) - 2), bools([True])]
    return Cases(
        samples=tuple(
            Sample(inputs(rate, step, case), dict(case))
            for case in ({}, *settings)
            for rate, step in ((0.1, 1), (0.01, 7))
        ),
        bad=(Bad(signalled, error=UnsupportedError),),
    )


CASES[rules.Lion] = cases_with(rules.Lion, {"betas": [0.85, 0.95], "weight_decay": 0.1})

CASES[rules.Adam] = cases_with(rules.Adam, {"betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.2})

CASES[rules.Momentum] = cases_with(
    rules.Momentum, {"dampening": 0.5}, {"momentum": 0.8, "dampening": 0.25, "weight_decay": 0.1}, {"nesterov": 1}
)

CASES[rules.RMSProp] = cases_with(
    rules.RMSProp,
    {"momentum": 0.8, "alpha": 0.9},
    {"centered": 1, "weight_decay": 0.1, "eps": 1e-2},
    {"momentum": 0.9, "centered": 1, "eps": 1e-2},
    moments=(SECOND_MOMENTS, FIRST_MOMENTS, THIRD_MOMENTS),
)

CASES[rules.Adagrad] = cases_with(
    rules.Adagrad,
    {"initial_accumulator_value": 0.5, "weight_decay": 0.1},
    {"initial_accumulator_value": 0.5, "lr_decay": 0.1, "eps": 0.01},
    moments=(SECOND_MOMENTS,),
)

CASES[rules.Adadelta] = cases_with(
    rules.Adadelta, {"rho": 0.7, "eps": 1e-3, "weight_decay": 0.1}, moments=(SECOND_MOMENTS, UPDATES)
)

CASES[rules.Adamax] = cases_with(rules.Adamax, {"betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.2})

CASES[rules.NAdam] = cases_with(
    rules.NAdam, {"betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.2, "momentum_decay": 0.1}
)

CASES[rules.RAdam] = cases_with(
    rules.RAdam, {"betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.2}, {"betas": [0.9, 0.5]}
)

CASES[rules.AdaBelief] = cases_with(rules.AdaBelief, {"betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.2})

CASES[rules.Adan] = cases_with(
    rules.Adan,
    {"betas": [0.8, 0.7, 0.95], "eps": 1e-3, "weight_decay": 0.2},
    moments=(FIRST_MOMENTS, THIRD_MOMENTS, SECOND_MOMENTS, FOURTH_MOMENTS),
)

CASES[rules.Lookahead] = cases_with(
    rules.Lookahead, {"sync_period": 7, "slow_step_size": 0.25, "momentum": 0.5, "weight_decay": 0.2}
)

CASES[rules.ScheduleFreeAdamW] = cases_with(
    rules.ScheduleFreeAdamW, {"betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.2}
)

CASES[rules.Lamb] = Cases(
    samples=(
        update_at(1),
        update_at(7, 0.01, betas=[0.8, 0.95], eps=1e-3, weight_decay=0.2),
        Sample([f32([0.1]), i64([1]), *[f32([0.0, 0.0]), f32([0.5, -1.0])], *[f32([0.0, 0.0])] * 2]),
        update_at(7, ratio_max=0.125, correct_bias=0),
        update_at(7, ratio_min=8.0),
        update_at(7, ratio_min=0.25, ratio_max=0.25, weight_decay=0.1),
    ),
    bad=(
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"ratio_min": 2.0, "ratio_max": 1.0}),
    ),
)

CASES[rules.Adafactor] = Cases(
    samples=(
        Sample([f32([0.1]), i64([1]), PARAMETERS, GRADIENTS, SECOND_MOMENTS, f32([])]),
        Sample(
            [f32([0.2]), i64([7]), PARAMETERS, GRADIENTS, SECOND_MOMENTS, f32([])],
            {"beta2_decay": -0.5, "eps": 0.01, "scale_eps": 10.0, "clip_threshold": 0.7, "weight_decay": 0.1},
        ),
    ),
    bad=(Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 3, f32([]), bools([True])], error=UnsupportedError),),
)

CASES[rules.Muon] = Cases(
    samples=(update_at(1), update_at(9, weight_decay=0.0)),
    bad=(
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"nesterov": 2}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"match_rms": 2}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"steps": -1}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4], {"alpha": 0.8}),
        Bad([f32([0.1]), i64([1]), *[PARAMETERS] * 4, bools([True])], error=UnsupportedError),
    ),
)
