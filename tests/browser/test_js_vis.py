"""`trainweb/vis`: what the elements show, against numpy and counting by hand."""

import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from .js_session import JsPage, open_js_page
from .server import ROOT, Site
from .test_js_fit import OPEN
from .test_js_package import node

EPOCHS = """
    const epoch = (number, loss, validation = null, terms = {}) =>
      ({ type: "epoch", epoch: number, steps: 4, loss, learningRate: 0.1, seconds: 0.25, validation, terms });
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    const place = (name) => document.body.appendChild(document.createElement(name));
"""


@pytest.fixture(scope="module")
def js(browser: Browser, plain_site: Site) -> Iterator[JsPage]:
    with open_js_page(browser, plain_site) as page:
        page.run("window.vis = await import('/dist/vis.js'); document.body.style.width = '600px';")
        yield page


def test_curves_show_a_fit_as_it_runs(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}{EPOCHS}
        const s = await open();
        const curves = place("trainweb-curves");
        const confusion = place("trainweb-confusion");
        const metrics = ["accuracy", "confusionMatrix"];
        const callbacks = [confusion.listener];
        const fit = s.fit(data(), {{ epochs: 3, batchSize: 10, validationSplit: 0.4, metrics, callbacks }});
        const history = await curves.watch(fit);
        await frame();
        const cells = [...confusion.shadowRoot.querySelectorAll("tbody tr")].map((row) =>
          [...row.querySelectorAll("td")].map((cell) => Number(cell.textContent)));
        const legend = [...curves.shadowRoot.querySelectorAll(".legend li")].map((item) => item.textContent);
        const caption = confusion.shadowRoot.querySelector("figcaption").textContent;
        const plots = curves.shadowRoot.querySelectorAll("canvas").length;
        await s.release();
        curves.remove(); confusion.remove();
        return {{ last: history.epochs[2], cells, legend, caption, plots }};
        """
    )
    last = found["last"]["validation"]
    assert found["cells"] == last["confusionMatrix"]
    right = round(20 * last["accuracy"])
    assert found["caption"] == f"{right} of 20 right"
    assert found["plots"] == 2
    names = [item.rsplit(" ", 1) for item in found["legend"]]
    assert [name for name, _ in names] == ["training loss", "validation loss", "validation accuracy"]
    expected = [found["last"]["loss"], last["loss"], last["accuracy"]]
    assert [float(value) for _, value in names] == pytest.approx(expected, rel=1e-3)


def test_curves_of_an_earlier_fit_make_way(js: JsPage) -> None:
    """Also if its events come late."""
    captions = js.run(
        f"""{EPOCHS}
        const curves = place("trainweb-curves");
        let send;
        const late = async function* () {{
          yield epoch(1, 9, {{ loss: 8 }});
          await new Promise((done) => {{ send = done; }});
          yield epoch(2, 9, {{ loss: 8 }});
        }};
        const caption = async () => {{
          await frame();
          return curves.shadowRoot.querySelector("figcaption").textContent;
        }};
        curves.watch(late());
        const first = await caption();
        curves.watch((async function* () {{ yield epoch(1, 5); yield epoch(2, 4); yield epoch(3, 3); }})());
        await frame();
        send();
        const second = await caption();
        const legend = [...curves.shadowRoot.querySelectorAll(".legend li")].map((item) => item.textContent);
        curves.remove();
        return [first, second, ...legend];"""
    )
    assert captions[0].startswith("1 epoch, ") and captions[1].startswith("3 epochs, ")
    assert captions[2:] == ["training loss 3"], "no validation of the earlier fit"


def test_the_page_of_the_docs_shows_its_training(page: Page, make_site: Callable[..., Site]) -> None:
    (html,) = re.findall(r"^```html\n(.*?)^```$", (ROOT / "docs" / "vis.md").read_text(), re.DOTALL | re.MULTILINE)
    site = make_site(mounts={"/trainweb/": [ROOT / "dist" / "npm"]})
    page.goto(site.add("/vis.html", html.replace("<title>", '<link rel="icon" href="data:,"><title>')))
    shown = [page.locator(f"trainweb-{name} figcaption") for name in ("curves", "confusion", "histogram")]
    expect(shown[0]).to_contain_text("20 epochs", timeout=60_000)
    expect(shown[1]).to_contain_text("of 200 right")
    expect(shown[2]).to_contain_text("hidden.weight: ")


def test_curves_are_drawn_where_the_values_are(js: JsPage) -> None:
    """A line that falls from the left to the right is above the middle on the left, and below it on the right."""
    heights = js.run(
        f"""{EPOCHS}
        const curves = place("trainweb-curves");
        curves.style.setProperty("--trainweb-training", "rgb(255, 0, 0)");
        curves.style.setProperty("--trainweb-line", "rgb(0, 0, 0)");
        curves.show({{ epochs: Array.from({{ length: 11 }}, (_, k) => epoch(k + 1, 10 - k)) }});
        await frame();
        const canvas = curves.shadowRoot.querySelector("canvas");
        const {{ data }} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const found = [[], []];
        for (let y = 0; y < canvas.height; y++) {{
          for (let x = 0; x < canvas.width; x++) {{
            const at = 4 * (y * canvas.width + x);
            if (data[at] > 200 && data[at + 1] < 50) found[Number(x > canvas.width / 2)].push(y / canvas.height);
          }}
        }}
        curves.remove();
        return found.map((ys) => ys.reduce((a, b) => a + b, 0) / ys.length);"""
    )
    left, right = heights
    assert left < 0.45 < 0.5 < right


def test_attributes_of_curves(js: JsPage) -> None:
    found = js.run(
        f"""{EPOCHS}
        const curves = place("trainweb-curves");
        const legend = () => [...curves.shadowRoot.querySelectorAll(".legend li")].map((item) => item.textContent);
        const words = [];
        curves.setAttribute("log", "");
        curves.setAttribute("metrics", "r2");
        curves.add({{ type: "progress", epoch: 1, step: 2, steps: null, loss: 5 }});
        await frame(); words.push(legend());
        curves.add(epoch(1, 4, {{ loss: 3, mae: 2, r2: 0.5, confusionMatrix: [[1]] }}, {{ age_loss: 7 }}));
        curves.add({{ type: "progress", epoch: 2, step: 2, steps: null, loss: 2 }});
        await frame(); words.push(legend());
        curves.removeAttribute("metrics");
        await frame(); words.push(legend());
        curves.setAttribute("validation", "test");
        await frame(); words.push(legend());
        curves.clear();
        await frame(); words.push(legend(), curves.shadowRoot.querySelector(".empty").textContent);
        curves.remove();
        return words;"""
    )
    r2, mae = "validation r2 0.5", "validation mae 2"
    # The last four steps: two of 3 (of the epoch's four, whose mean is 4, the first two have 5), and two of 2.
    shown = ["training loss 2.5", "validation loss 3"]
    age = "training age_loss 7"
    tested = [text.replace("validation", "test") for text in (*shown, age, mae, r2)]
    # A stream tells no length: progress of its first epoch has its place when that is over.
    ended = [[], "The curves appear here with the first steps."]
    assert found == [[], [*shown, r2], [*shown, age, mae, r2], tested, *ended]


def test_metrics_of_training_data_have_curves(js: JsPage) -> None:
    """Both are in one plot, as values of a real fit."""
    found = js.run(
        f"""{OPEN}{EPOCHS}
        const s = await open();
        const curves = place("trainweb-curves");
        const options = {{ epochs: 2, batchSize: 10, validationSplit: 0.4, metrics: ["accuracy"], trainMetrics: true }};
        const history = await curves.watch(s.fit(data(), options));
        await frame();
        const legends = [...curves.shadowRoot.querySelectorAll(".legend")].map((legend) =>
          [...legend.children].map((item) => item.textContent));
        await s.release();
        curves.remove();
        return {{ last: history.epochs[1], legends }};"""
    )
    last, (_, metric) = found["last"], found["legends"]
    assert [item.rsplit(" ", 1)[0] for item in metric] == ["training accuracy", "validation accuracy"]
    expected = [last[data]["accuracy"] for data in ("training", "validation")]
    assert [float(item.rsplit(" ", 1)[1]) for item in metric] == pytest.approx(expected, rel=1e-3)


def test_rates_show_the_suggestion_where_it_is(js: JsPage) -> None:
    """Of 1e-4 to 1e-1 the suggestion 1e-2 lies at two thirds of the plot, on a logarithmic axis."""
    found = js.run(
        f"""{EPOCHS}
        const rates = place("trainweb-rates");
        const empty = rates.shadowRoot.querySelector(".empty").textContent;
        rates.style.setProperty("--trainweb-validation", "rgb(255, 0, 0)");
        rates.style.setProperty("--trainweb-training", "rgb(0, 0, 255)");
        rates.style.setProperty("--trainweb-line", "rgb(0, 0, 0)");
        const tried = Array.from({{ length: 31 }}, (_, k) => 10 ** (-4 + k / 10));
        const result = {{ rates: tried, losses: tried.map((_, k) => 10 - k / 10), suggestion: 0.01 }};
        rates.show(result);
        await frame();
        const canvas = rates.shadowRoot.querySelector("canvas");
        const {{ data }} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const places = {{ red: [], blue: [] }};
        for (let at = 0; at < data.length; at += 4) {{
          const [red, , blue] = data.slice(at, at + 3);
          if (red > 200 && blue < 50) places.red.push((at / 4) % canvas.width);
          if (blue > 200 && red < 50) places.blue.push((at / 4) % canvas.width);
        }}
        const words = rates.shadowRoot.querySelector("figcaption").textContent;
        rates.show({{ ...result, suggestion: null }});
        await frame();
        const without = rates.shadowRoot.querySelector("figcaption").textContent;
        const uneven = {{ rates: [1], losses: [] }};
        const errors = [await failure(() => rates.show(3)), await failure(() => rates.show(uneven))];
        rates.remove();
        const mean = (all) => all.reduce((a, b) => a + b, 0) / all.length;
        const [first, last] = [Math.min(...places.blue), Math.max(...places.blue)];
        const at = (mean(places.red) - first) / (last - first);
        return {{ empty, at, words, without, errors: errors.map((e) => e.name) }};
        """
    )
    assert found["at"] == pytest.approx(2 / 3, abs=0.02)
    assert found["empty"] == "The losses by learning rate appear here."
    assert found["words"] == "suggested learning rate 0.01"
    assert found["without"] == "no suggestion: the loss falls at no rate"
    assert found["errors"] == ["TypeError"] * 2


def test_the_training_loss_is_the_mean_of_the_last_steps(js: JsPage) -> None:
    """Two epochs of 50 steps, told of now and then: no cliff where the events' mean begins anew."""
    losses = 2 - np.arange(100) / 100
    told = [7, 30, 45, 57, 80, 99]
    events = [
        {
            "type": "progress",
            "epoch": 1 + at // 50,
            "step": at % 50,
            "steps": 50,
            "loss": losses[50 * (at // 50) : at].mean(),
        }
        for at in told
    ]
    found = js.run(
        f"""{EPOCHS}
        const curves = place("trainweb-curves");
        const shown = [];
        for (const event of events) {{
          if (event.epoch === 2 && event.step === 7) curves.add({{ ...epoch(1, first), steps: 50 }});
          curves.add(event);
          await frame();
          const [training] = curves.shadowRoot.querySelectorAll(".legend li");
          shown.push(Number(training.textContent.split(" ").at(-1)));
        }}
        curves.remove();
        return shown;""",
        events=events,
        first=losses[:50].mean(),
    )
    # As many events back as hold 20 steps at least.
    starts = [0, 7, 7, 30, 57, 57]
    means = [losses[start:at].mean() for start, at in zip(starts, told, strict=True)]
    assert found == pytest.approx(means, rel=1e-3)
    assert found == sorted(found, reverse=True)


def test_a_histogram_counts_as_numpy_does(js: JsPage) -> None:
    values = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    found = js.run(
        """
        const { counts, lowest, highest, mean, standardDeviation, notFinite } =
          vis.histogramOf(Float32Array.from([...values, NaN, Infinity]), 17);
        return { counts, ends: [lowest, highest], moments: [mean, standardDeviation], notFinite };""",
        values=values.tolist(),
    )
    assert found["counts"] == np.histogram(values.astype(np.float64), 17)[0].tolist()
    assert found["ends"] == [values.min(), values.max()]
    assert found["moments"] == pytest.approx([values.mean(), values.std()], rel=1e-4)
    assert found["notFinite"] == 2


def test_a_histogram_of_nothing_and_of_equal_values(js: JsPage) -> None:
    found = js.run(
        """
        const of = (values, bins) => vis.histogramOf(values, bins).counts;
        return [of([], 3), of([5, 5], 3), String(await failure(() => of([1], 0)).then((e) => e.message))];"""
    )
    assert found == [[0, 0, 0], [2, 0, 0], "'bins' must be an integer from 1 to 1000, got 0."]


def test_a_histogram_follows_a_weight(js: JsPage) -> None:
    captions = js.run(
        f"""{OPEN}{EPOCHS}
        const s = await open();
        const histogram = place("trainweb-histogram");
        const [name] = await s.parameterNames();
        const caption = async () => {{
          await frame();
          return histogram.shadowRoot.querySelector("figcaption").textContent;
        }};
        await histogram.show(s, name);
        const found = [name, await caption()];
        await histogram.watch(s.fit(data(), {{ epochs: 1 }}));
        let after = found[1];
        for (let frames = 0; frames < 600 && after === found[1]; frames++) after = await caption();
        found.push(after, (await failure(() => histogram.show(s, "nobody"))).name);
        const {{ data: values }} = await s.getParameter(name);
        found.push(Number((values.reduce((a, b) => a + b, 0) / values.length).toPrecision(4)));
        await s.release();
        histogram.remove();
        return found;"""
    )
    name, before, after, error, mean = captions
    assert before.startswith(f"{name}: ") and after.startswith(f"{name}: ") and before != after
    assert f"mean {mean}," in after
    assert error == "CheckpointError"


def test_what_cannot_be_shown(js: JsPage) -> None:
    found = js.run(
        f"""{OPEN}{EPOCHS}
        const names = ["images", "confusion", "histogram"];
        const [images, confusion, histogram] = names.map((name) => place(`trainweb-${{name}}`));
        const s = await open();
        const errors = [];
        for (const action of [
          () => {{ images.items = 3; }}, () => {{ images.items = [{{}}]; }}, () => {{ confusion.values = [["a"]]; }},
          () => {{ confusion.values = 3; }}, () => confusion.watch(3), () => confusion.watch(null),
          () => histogram.show(s, s.parameterNames?.[0] ?? "w", "weight"),
        ]) errors.push(await failure(action));
        await s.release();
        [images, confusion, histogram].forEach((panel) => panel.remove());
        return errors.map((error) => error && [error.name, error.message.slice(0, 24)]);"""
    )
    assert found == [
        ["TypeError", "'items' must be an array"],
        ["TypeError", "an image must be a tenso"],
        *[["TypeError", "'values' must be a squar"]] * 2,
        *[["TypeError", "'fit' must be what sessi"]] * 2,
        ["TypeError", "'what' must be \"weights\""],
    ]


def test_images_show_pixels_and_mark_mistakes(js: JsPage) -> None:
    found = js.run(
        f"""{EPOCHS}
        const images = place("trainweb-images");
        const shown = () => images.shadowRoot.textContent;
        const empty = [shown()];
        images.items = [];
        empty.push(shown());
        const image = new Tensor("float32", Float32Array.of(0, 1, 2, 4), [1, 2, 2]);
        const [label, predicted] = ["cat", "dog"];
        images.items = [{{ image, label, predicted }}, {{ image, label, predicted: label }}, {{ image }}];
        const items = [...images.shadowRoot.querySelectorAll("li")];
        const texts = items.map((item) => [item.className, item.textContent]);
        const canvas = items[0].querySelector("canvas");
        const pixels = [...canvas.getContext("2d").getImageData(0, 0, 2, 2).data];
        const error = await failure(() => {{ images.items = [{{ image: new Tensor("float32", [1, 2], [2]) }}]; }});
        images.remove();
        return {{ texts, pixels, empty, error: error.message }};"""
    )
    assert found["empty"] == ["The images appear here.", "There are no such images."]
    assert found["texts"] == [["wrong", "cat → dog"], ["", "cat"], ["", ""]]
    grey = [0, 64, 128, 255]
    assert found["pixels"] == [value for g in grey for value in (g, g, g, 255)]
    assert found["error"] == "an image must be of shape [H, W], [1, H, W] or [3, H, W], got [2]."


def test_a_failed_fit_fails_where_it_is_awaited(js: JsPage) -> None:
    error = js.run(
        f"""{OPEN}{EPOCHS}
        const s = await open();
        const curves = place("trainweb-curves");
        const error = await failure(() => curves.watch(s.fit({{ x: new Tensor("float32", [1], [1]) }}, {{}})));
        await s.release();
        curves.remove();
        return error.name;"""
    )
    assert error == "FeedError"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(js: JsPage, scheme: str) -> None:
    js.page.emulate_media(color_scheme=scheme)
    if not js.run("return 'axe' in window;"):
        js.page.add_script_tag(path=ROOT / "node_modules" / "axe-core" / "axe.min.js")
    violations = js.run(
        f"""{EPOCHS}
        document.documentElement.style.colorScheme = "light dark";
        document.body.style.background = "Canvas";
        const all = Object.fromEntries(["curves", "confusion", "histogram", "images", "rates"].map((kind) =>
          [kind, place(`trainweb-${{kind}}`)]));
        const epochs = [epoch(1, 3, {{ loss: 2, accuracy: 0.5 }}), epoch(2, 2, {{ loss: 2, accuracy: 0.7 }})];
        all.curves.show({{ epochs }});
        all.rates.show({{ rates: [1e-3, 1e-2, 1e-1], losses: [3, 2, 4], suggestion: 1e-2 }});
        all.confusion.values = [[90, 1], [20, 30]];
        all.histogram.values = [1, 2, 2, 3];
        all.images.items = [{{ image: new Tensor("float32", [1, 2, 3, 4], [2, 2]), label: "a", predicted: "b" }}];
        await frame();
        const panels = Object.values(all);
        const {{ violations }} = await axe.run(panels);
        panels.forEach((panel) => panel.remove());
        return violations.map(({{ id, nodes }}) => [id, nodes.map(({{ failureSummary }}) => failureSummary)]);"""
    )
    assert violations == []


def test_a_server_can_import_it() -> None:
    code = "const m = await import('./dist/npm/vis.js'); console.log(m.histogramOf([1, 2, 4], 3).counts.join());"
    assert node(code).strip() == "1,1,1"


def test_colours_may_be_of_variables_of_the_page(js: JsPage) -> None:
    """Names in a page cannot interfere: `--line` of a page is no circle with one of ours."""
    names = ("ink", "muted", "line", "training", "validation", "right", "wrong")
    page = {f"--{name}": f"rgb({k}, 20, 30)" for k, name in enumerate(names)}
    found = js.run(
        """await import("/dist/vis.js");
        const root = document.documentElement.style;
        Object.entries(page).forEach(([name, value]) => root.setProperty(name, value));
        const confusion = document.createElement("trainweb-confusion");
        confusion.style.cssText = names.map((name) => `--trainweb-${name}: var(--${name})`).join("; ");
        document.body.replaceChildren(confusion);
        confusion.values = [[1, 0], [1, 1]];
        await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
        const table = confusion.shadowRoot.querySelector("table");
        const cells = [...table.querySelectorAll("tbody td")];
        const corner = table.querySelector("thead td");
        const colours = [getComputedStyle(corner).color, getComputedStyle(cells[0]).borderTopColor];
        Object.keys(page).forEach((name) => root.removeProperty(name));
        return [colours, cells.map((cell) => [cell.className, cell.textContent])];""",
        names=names,
        page=page,
    )
    assert found[0] == ["rgb(1, 20, 30)", "rgb(2, 20, 30)"]
    # The diagonal counts as right.
    assert found[1] == [["right", "1"], ["wrong", ""], ["wrong", "1"], ["right", "1"]]
