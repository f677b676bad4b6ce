"""The order of the compiler's passes is declared, checked, and told."""

import re
from typing import cast

import pytest
from tests.python import pipelines, sessions
from tests.python.pipelines import NAMES, ROOT

from trainweb.backend.base import Target
from trainweb.backend.chosen import DEFAULT_TARGET
from trainweb.compiler.context import Cache, Context
from trainweb.compiler.pipeline import BUDGETED, CACHING, FROZEN, PASSES, Pass, check_order, describe
from trainweb.ir import calls
from trainweb.ir.program import Program

DECLARED = {(each.name, other): why for each in PASSES for other, why in each.before.items()}
DECLARED |= {(other, each.name): why for each in PASSES for other, why in each.after.items()}
"""Why the one must come before the other."""


@pytest.mark.parametrize(("first", "second"), DECLARED, ids=" ".join)
def test_a_wrong_order_is_an_error_that_says_why(first: str, second: str) -> None:
    order = [each for each in PASSES if each.name != second]
    order.insert(NAMES.index(first), PASSES[NAMES.index(second)])
    with pytest.raises(ValueError, match="must come") as refused:
        check_order(order)
    told = re.fullmatch(r"(\w+) must come (before|after) (\w+): (.*)\.", str(refused.value))
    assert told is not None
    pair = (told[1], told[3]) if told[2] == "before" else (told[3], told[1])
    assert DECLARED[pair] == told[4]


def first(program: Program, context: Context) -> None:
    pass


def second(program: Program, context: Context) -> None:
    pass


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ((Pass(second), Pass(first, before={"second": "reasons"})), "first must come before second: reasons."),
        ((Pass(second, after={"first": "reasons"}), Pass(first)), "second must come after first: reasons."),
        ((Pass(first, after={"third": "reasons"}),), "first names unknown passes: third."),
        ((Pass(first, needs=("third",)),), "first names unknown passes: third."),
        ((Pass(first), Pass(first)), "Two passes have one name."),
    ],
)
def test_what_is_wrong_with_an_order(passes: tuple[Pass, ...], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        check_order(passes)


def test_attention_depends_on_the_passes_before_it() -> None:
    """Exchanged with one of these it would vanish from plans, and no test of results would notice."""
    for name in ("absorb_factors", "absorb_copies"):
        assert (name, "fuse_attention") in DECLARED


def test_conditions() -> None:
    context = pipelines.context()
    assert not CACHING.holds(context) and not BUDGETED.holds(context)
    context.cache = Cache(set())
    assert CACHING.holds(context) and not BUDGETED.holds(context)
    context.memory_budget = 0
    assert CACHING.holds(context) and BUDGETED.holds(context)
    assert not FROZEN.holds(context)
    context.saves_little = True
    assert FROZEN.holds(context)


def test_the_documentation_shows_the_pipeline() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert describe() in page, "print it with `python -m trainweb.compiler.pipeline`"


def test_a_session_explains_its_plan() -> None:
    with sessions.session("mlp") as s:
        feeds = sessions.batch("mlp")
        text = s.explain(feeds)
        lowered, *parts = re.split(r"(?m)^(\w+): (?=no change|\d+ -> )", text)
        assert parts[::2] == [each.name for each in PASSES if each.when not in (BUDGETED, FROZEN)]
        changes = dict(zip(parts[::2], parts[1::2], strict=True))
        assert re.match(r"lowered: (\d+) instructions\n", lowered)
        assert changes["fuse_attention"].strip() == "no change"
        # Bias and relu go into the product; its result is from then on what relu made.
        removed, added = (re.findall(rf"(?m)^\{sign}(.*)$", changes["fuse_epilogues"]) for sign in "-+")
        assert any("= pmax(" in line for line in removed) and not any("= pmax(" in line for line in added)
        assert all("activation=1" in line for line in added) and added
        assert not s._core.host.loaded, "no plan is kept"
        before = len(re.findall("check_indices", text))
        s.train_step(feeds)
        assert len(re.findall("check_indices", s.explain(feeds))) == before
        assert "lowered" in s.explain(feeds, training=False)


def test_the_environment_asks_for_a_dump(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TRAINWEB_DUMP", "passes")
    with sessions.session("mlp") as s:
        s.train_step(sessions.batch("mlp"))
        told = capsys.readouterr().err
        assert re.search(r"(?m)^lowered: ", told) and "fuse_epilogues: " in told
        monkeypatch.setenv("TRAINWEB_DUMP", "everything")
        with pytest.raises(ValueError, match="TRAINWEB_DUMP can only be passes; it is 'everything'"):
            s.eval_step(sessions.batch("mlp"))


class Scalar:
    """A target that has no attention, and no passes of its own."""

    name = "scalar"
    passes: dict[str, object] = {}

    @staticmethod
    def has(kind: type[calls.KernelCall]) -> bool:
        return kind is not calls.AttentionGradient


def test_a_target_has_the_passes_whose_calls_it_has() -> None:
    context = Context(cast("Target", Scalar))
    context.cache, context.memory_budget, context.saves_little = Cache(set()), 0, True
    left_out = [each.name for each in PASSES if not each.is_for(context)]
    assert left_out == ["select_methods", "fuse_attention", "fuse_reductions"]
    context.target = DEFAULT_TARGET
    assert all(each.is_for(context) for each in PASSES)


def test_passes_name_the_calls_that_only_they_make() -> None:
    package = ROOT / "py_src" / "trainweb"
    sources = {path.stem: path.read_text() for path in (package / "compiler" / "passes").glob("*.py")}
    operators = "".join(path.read_text() for path in (package / "ops").rglob("*.py"))
    for each in PASSES:
        text = sources.get(each.run.__module__.rpartition(".")[2], "")
        made = {kind for kind in calls.KernelCall.KERNELS if re.search(rf"(?<!\w){kind.__name__}\(", text)}
        only = {kind for kind in made if not re.search(rf"(?<!\w){kind.__name__}\(", operators)}
        # The quantized head's loss is made of a quantized product, which another pass makes.
        assert only - {calls.HeadLossQuantized} <= {*each.makes}, each.name
