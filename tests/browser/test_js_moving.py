"""Feeds that lie in the kernels' memory while the plan of their step is loaded, which may move them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

from .js_session import open_js_page
from .server import Site
from .test_js_fit import OPEN


@pytest.mark.parametrize("rows", [4, 50])
def test_feeds_outlast_the_move_of_the_arena_that_they_lie_in(browser: Browser, isolated_site: Site, rows: int) -> None:
    """The plan of a step that adds to gradients needs more room than that of the same feeds at first."""
    with open_js_page(browser, isolated_site) as js:
        arenas, losses, same = js.run(
            f"""{OPEN}
            const arenas = [], losses = [], gradients = [];
            // Feeds that are transferred lie in no memory of the kernels before their step runs.
            for (const transfer of [false, true]) {{
              const s = await open();
              await s.runTrainStep(data(rows));
              const before = (await s.memory()).arena;
              losses.push((await s.runTrainStep(data(rows), {{ transfer }}))[s.trainingOutputNames[0]].data[0]);
              arenas.push((await s.memory()).arena > before);
              for (const name of await s.parameterNames()) {{
                gradients.push([...new Uint8Array((await s.getGradient(name)).data.buffer)].join());
              }}
              await s.release();
            }}
            const half = gradients.length / 2;
            return [arenas, losses, gradients.slice(0, half).join() === gradients.slice(half).join()];""".replace(
                "const rows = 50;", f"const rows = {rows};"
            )
        )
    assert arenas == [True, True], "the arena does not move: these plans do not show what is tested"
    assert losses[0] == losses[1] and same
