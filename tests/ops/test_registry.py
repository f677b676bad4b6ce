"""Every operator class is complete, and says of its versions what ONNX says."""

from pathlib import Path

import onnx.defs
import pytest
from operators_table import operators_table
from tests.each import run_each
from tests.ops.cases import CASES, cases_of, reference_of
from tests.ops.op_runner import label

from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.op import Op, registry
from trainweb.ops.pool import MaxPool, _Pool
from trainweb.ops.selection import Selection

OLDEST_OPSET = 7
CLASSES = list(registry())
TRAINING_ONLY = {"AveragePoolGrad", "MaxPoolGrad"}
"""Operators ONNX Runtime training put into ai.onnx."""
UNREGISTERED_IN_ONNX = {"SimplifiedLayerNormalization", *TRAINING_ONLY}


def expands(cls: type[Op]) -> bool:
    return issubclass(cls, Composite) and cls.expand is not Composite.expand


def test_each_class_has_samples_a_reference_and_a_docstring() -> None:
    run_each(CLASSES, check_class, label)


def test_a_class_without_cases_fails() -> None:
    class Forgotten(Op, abstract=True):
        """An operator that tests/ops/cases does not name."""

    with pytest.raises(AssertionError, match="no cases"):
        check_class(Forgotten)


def test_members_that_a_class_does_not_give_are_those_of_its_base() -> None:
    cases, base = cases_of(MaxPool), cases_of(_Pool)
    assert (cases.samples, cases.bad) == (CASES[MaxPool].samples, CASES[_Pool].bad)
    assert cases.samples[: len(base.samples)] == base.samples


def check_class(cls: type[Op]) -> None:
    cases = cases_of(cls)
    assert cases.samples or cases.tested_through, "no cases in tests/ops/cases"
    # ONNX's reference evaluator computes what its own domain has.
    assert reference_of(cls) or cases.tested_through or not cls.domain, "no reference"
    assert cls.__doc__ and cls.__doc__ is not Op.__doc__
    # A value that is known when a plan is compiled needs no kernel.
    assert cls.is_view or cls.lower is not Op.lower or expands(cls) or issubclass(cls, Selection), "no lowering"
    assert cls.infer is not Op.infer, "no shape inference"
    if cls.differentiable:
        assert cls.gradient is not Op.gradient or expands(cls), "no gradient"
        wanted = any(sample.grad is None or sample.grad for sample in cases.samples)
        assert wanted or cases.tested_through, "no sample for the gradient"


def test_versions_and_attributes_are_those_of_onnx() -> None:
    run_each([c for c in CLASSES if c.domain == "" and c.op_type() not in UNREGISTERED_IN_ONNX], check_schema, label)


def check_schema(cls: type[Op]) -> None:
    history = sorted(
        s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == cls.op_type() and s.domain == ""
    )
    first = max([v for v in history if v <= OLDEST_OPSET], default=history[0])
    # Older forms may be refused, or accepted because ONNX Runtime had the operator before ONNX.
    first = max(first, cls.versions[0])
    assert [v for v in cls.versions if v >= first] == [v for v in history if v >= first]
    schema = onnx.defs.get_schema(cls.op_type(), max(cls.versions), "")
    for name, attribute in schema.attributes.items():
        ours = cls.attrs.get(name)
        assert ours is not None, f"the attribute {name} is not declared"
        assert ours.required == attribute.required, name
        default = onnx.helper.get_attribute_value(attribute.default_value) if attribute.default_value.name else None
        changed_over_time = ours.default is None
        if default is not None and not changed_over_time and not isinstance(default, onnx.TensorProto):
            given = default.decode() if isinstance(default, bytes) else default
            assert ours.default == pytest.approx(given) if isinstance(given, float) else ours.default == given, name


def test_the_table_of_operators_in_the_documentation_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "operators.md"
    assert page.read_text() == operators_table(), "run: python scripts/operators_table.py > docs/operators.md"
