"""The examples of the API reference, which stand beside each other in both languages, run in a page."""

import sys

from playwright.sync_api import Browser

from .js_session import open_js_page
from .server import ROOT, Site

sys.path.insert(0, str(ROOT / "scripts"))

from api_examples import EXAMPLES


def test_the_examples_of_pages_run_one_after_the_other(browser: Browser, plain_site: Site) -> None:
    code = "\n".join(example.page_code for example in EXAMPLES)
    with open_js_page(browser, plain_site) as js:
        found = js.run(
            f"""
            const {{ Dataset, example, InferenceSession, Tensor, TrainingSession }} = trainweb;
            {code}
            await Promise.all([session, again, trained].map((one) => one.release()));
            const filled = table.columns.get("points").data[3];
            return {{ accuracy: values.accuracy, filled, logits: [...logits.data], dims: scores.logits.dims }};"""
        )
    assert found["accuracy"] > 0.85 and abs(found["filled"] - 0.4) < 1e-6
    inside, outside = found["logits"][:2], found["logits"][2:]
    assert inside[1] > inside[0] and outside[0] > outside[1]
    assert found["dims"] == [3, 2]
