"""Every operator class is complete, and says of its versions what ONNX says."""

from __future__ import annotations

from pathlib import Path

import onnx.defs
import pytest
from operators_table import operators_table
from tests.ops.op_runner import label

from trainweb.ops.frame.composite import Composite
from trainweb.ops.frame.op import Op, registry
from trainweb.ops.selection import Selection

OLDEST_OPSET = 7
CLASSES = list(registry())
TRAINING_ONLY = {"AveragePoolGrad", "MaxPoolGrad"}
"""Operators ONNX Runtime training put into ai.onnx."""
UNREGISTERED_IN_ONNX = {"SimplifiedLayerNormalization", *TRAINING_ONLY}


def expands(cls: type[Op]) -> bool:
    return issubclass(cls, Composite) and cls.expand is not Composite.expand


@pytest.mark.parametrize("cls", CLASSES, ids=label)
def test_a_class_has_samples_a_reference_and_a_docstring(cls: type[Op]) -> None:
    assert cls.samples or cls.tested_through, "no samples"
    # ONNX's reference evaluator computes what its own domain has.
    assert hasattr(cls, "reference") or cls.tested_through or not cls.domain, "no reference"
    assert cls.__doc__ and cls.__doc__ is not Op.__doc__
    # A value that is known when a plan is compiled needs no kernel.
    assert cls.is_view or cls.lower is not Op.lower or expands(cls) or issubclass(cls, Selection), "no lowering"
    assert cls.infer is not Op.infer, "no shape inference"


@pytest.mark.parametrize("cls", [c for c in CLASSES if c.differentiable], ids=label)
def test_a_differentiable_class_has_a_gradient_and_a_sample_to_check_it_on(cls: type[Op]) -> None:
    assert cls.gradient is not Op.gradient or expands(cls)
    assert hasattr(cls, "tested_through") or any(sample.grad is None or sample.grad for sample in cls.samples)


IN_ONNX = [c for c in CLASSES if c.domain == "" and c.op_type() not in UNREGISTERED_IN_ONNX]


@pytest.mark.parametrize("cls", IN_ONNX, ids=label)
def test_versions_are_those_of_onnx(cls: type[Op]) -> None:
    history = sorted(
        s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == cls.op_type() and s.domain == ""
    )
    first = max([v for v in history if v <= OLDEST_OPSET], default=history[0])
    # Older forms may be refused, or accepted because ONNX Runtime had the operator before ONNX.
    first = max(first, cls.versions[0])
    assert [v for v in cls.versions if v >= first] == [v for v in history if v >= first]


@pytest.mark.parametrize("cls", IN_ONNX, ids=label)
def test_attributes_have_the_defaults_of_onnx(cls: type[Op]) -> None:
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
