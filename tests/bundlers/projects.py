"""The projects that the package is installed into: exact versions, and what a user adds to them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

COPY = "npx trainweb copy {folder}"

FUNCTION = "async function main() { ... }"
"""Around the README's lines, where a mode needs it."""

NODE = "22.23.3"
"""Of projects that want a newer one than the package does."""


@dataclass(frozen=True)
class Mode:
    """One way to run a project; of `build`, `server` and `program` at least one is there.

    Parameters
    ----------
    name
        As the result table calls it.
    build
        Command that is run once before it.
    server
        Command that serves until it is ended; `PORT` in it is a free port. None: a static server does, from `folder`.
    folder
        What the static server serves.
    path
        Where the page lies on the server.
    program
        Command that trains by itself, without a browser.
    wrapped
        The README's lines are in a function, for there is no `await` outside of one.
    """

    name: str
    build: str | None = None
    server: str | None = None
    folder: str = "dist"
    path: str = "/index.html"
    program: str | None = None
    wrapped: bool = False


@dataclass(frozen=True)
class Project:
    """A fresh project with the package in it.

    Parameters
    ----------
    title
        As the result table calls it, with `{name}` for the version of a package.
    template
        Folder under projects/ that is copied, over the files of app/.
    packages
        npm packages with their exact versions.
    added
        The lines that a user adds, as docs/deploy.md shows them; empty: nothing.
    edits
        Those lines where they go: file, what stands there, what stands there then.
    copied
        Folder for `npx trainweb copy`, if that is among the lines.
    copies_first
        That comes before the build, which takes the folder along.
    script
        Script of app/index.html.
    public
        Folder for the model.
    sources
        Folder for the scripts of app/.
    label
        What it is called where not after its template.
    """

    title: str
    template: str
    packages: Mapping[str, str]
    modes: tuple[Mode, ...]
    added: tuple[str, ...] = ()
    edits: tuple[tuple[str, str, str], ...] = ()
    copied: str | None = None
    copies_first: bool = False
    script: str = "main.js"
    public: str = "public"
    sources: str = "."
    environment: Mapping[str, str] = field(default_factory=dict)
    label: str | None = None

    @property
    def name(self) -> str:
        """Folder of the project, its lock file, and what the command line calls it."""
        versions = [version.split(".")[0] for version in self.packages.values()]
        return "".join([self.label or self.template, *versions[:1]])

    @property
    def heading(self) -> str:
        """The title with its version."""
        return self.title.format(*self.packages.values())


def _vite(version: str, *, is_old: bool = False) -> Project:
    target = 'build: { target: "es2022" }'
    return Project(
        "Vite {}", "vite", {"vite": version}, (
            Mode("dev", server="npx vite --port PORT --strictPort --host 127.0.0.1", path="/sub/app/"),
            Mode("build", build="npx vite build", path="/sub/app/index.html"),
        ),
        # Those of the first modes need nothing, but a project has one configuration.
        added=(target,) if is_old else (),
        edits=(("vite.config.js", 'base: "/sub/app/",', f'base: "/sub/app/",\n  {target},'),) if is_old else (),
    )  # fmt: skip


def _state(title: str, template: str, packages: Mapping[str, str], added: tuple[str, ...] = ()) -> Project:
    """Make a project of `npm create vite` whose framework keeps the session, its data and its fit in its state."""
    modes = (
        Mode("dev", server="npx vite --port PORT --strictPort --host 127.0.0.1", path="/sub/app/"),
        Mode("build", build="npx vite build", path="/sub/app/index.html"),
    )
    return Project(
        title, template, {**packages, "vite": "8.4.0"}, modes, added=added, script="src/start.js", sources="src",
    )  # fmt: skip


EXCLUDED = 'optimizeDeps: { exclude: ["trainweb"] }'
"""Where npm installs the package above Vite's root, as in a workspace."""

STATIC_COPY = COPY.format(folder="dist/trainweb")

NEXT_SERVER = "npx next start --port PORT --hostname 127.0.0.1"

DENO = "npx deno run --allow-read --allow-env --allow-sys --node-modules-dir=manual run.js"


def _runtime(title: str, version: str, command: str) -> Project:
    package = title.lower()
    return Project(
        f"{title} {{}}", "runtime", {package: version}, (Mode("script", program=command),), public=".", label=package,
    )  # fmt: skip


def _vitest(version: str, jsdom: str, node: Mapping[str, str] = MappingProxyType({})) -> Project:
    return Project(
        "Vitest {}", "tests", {"vitest": version, "jsdom": jsdom, **node}, (
            Mode("node", program="npx vitest run --globals"),
            Mode("jsdom", program="env DOM=1 npx vitest run --globals --environment jsdom"),
        ), public=".", label="vitest",
    )  # fmt: skip


PROJECTS = (
    _vite("8.3.8"),
    _vite("7.3.8"),
    _vite("6.4.6", is_old=True),
    _vite("5.4.21", is_old=True),
    Project(
        "Vite {}, workspace", "workspace", {"vite": "8.3.8"}, (
            Mode("dev", server="npx vite web --port PORT --strictPort --host 127.0.0.1", path="/sub/app/"),
            Mode("build", build="npx vite build web", path="/sub/app/index.html"),
        ),
        added=(EXCLUDED,), edits=(("web/vite.config.js", 'base: "/sub/app/",', f'base: "/sub/app/",\n  {EXCLUDED},'),),
        public="web/public", sources="web", label="vite",
    ),
    Project(
        "webpack {}", "webpack", {"webpack": "5.112.2", "webpack-cli": "7.3.1"}, (
            Mode("development", build="npx webpack --mode development"),
            Mode("production", build="npx webpack --mode production"),
        ), public="dist",
    ),
    Project(
        "Rspack {}", "rspack", {"@rspack/core": "2.3.2", "@rspack/cli": "2.2.8"}, (
            Mode("development", build="npx rspack build --mode development"),
            Mode("production", build="npx rspack build --mode production"),
        ), public="dist",
    ),
    Project(
        "Rollup {}", "rollup", {"rollup": "4.68.7", "@rollup/plugin-node-resolve": "16.0.3"},
        (Mode("build", build="npx rollup --config"),),
        added=(STATIC_COPY,), copied="dist/trainweb", public="dist",
    ),
    Project(
        "esbuild {}", "esbuild", {"esbuild": "0.28.2"},
        (
            Mode("ESM", build="npx esbuild main.js --bundle --minify --format=esm --outdir=dist"),
            Mode("script", build="npx esbuild main.js --bundle --minify --outdir=dist", wrapped=True),
        ),
        added=(STATIC_COPY,), copied="dist/trainweb", public="dist",
    ),
    Project(
        "Parcel {}", "parcel", {"parcel": "2.16.4"},
        (
            Mode("build", build="npx parcel build index.html --public-url ./ --no-cache", wrapped=True),
            Mode(
                "dev", server="npx parcel serve index.html --port PORT --host 127.0.0.1 --no-cache --no-hmr",
                path="/index.html", wrapped=True,
            ),
        ),
        added=(STATIC_COPY,), copied="dist/trainweb", public="dist",
    ),
    Project(
        "Next.js {}, Turbopack", "next", {"next": "16.4.6", "react": "19.3.1", "react-dom": "19.3.1"}, (
            Mode("dev", server="npx next dev --port PORT --hostname 127.0.0.1", path="/"),
            Mode("build", build="npx next build", server=NEXT_SERVER, path="/"),
        ),
    ),
    Project(
        "Next.js {}, webpack", "next", {"next": "16.4.6", "react": "19.3.1", "react-dom": "19.3.1"}, (
            Mode("dev", server="npx next dev --webpack --port PORT --hostname 127.0.0.1", path="/"),
            Mode("build", build="npx next build --webpack", server=NEXT_SERVER, path="/"),
        ),
    ),
    Project(
        "SvelteKit {}", "sveltekit", {
            "@sveltejs/kit": "2.70.4", "@sveltejs/adapter-static": "3.0.9",
            "@sveltejs/vite-plugin-svelte": "7.3.1", "svelte": "5.57.3", "vite": "8.3.8",
        }, (
            Mode("dev", server="npx vite --port PORT --strictPort --host 127.0.0.1", path="/"),
            Mode("build", build="npx vite build", folder="build"),
        ), public="static", sources="src",
    ),
    _state("Vue {}, Pinia {}", "vue", {"vue": "3.5.45", "pinia": "4.1.0", "@vitejs/plugin-vue": "6.0.11"}),
    _state("Alpine {}", "alpine", {"alpinejs": "3.17.5"}),
    _state("Svelte {}", "svelte", {"svelte": "5.57.3", "@sveltejs/vite-plugin-svelte": "7.3.1"}),
    _state(
        "Valtio {}, React {}", "valtio",
        {"valtio": "2.3.2", "react": "19.3.1", "react-dom": "19.3.1", "@vitejs/plugin-react": "6.3.0"},
        added=("state.session = ref(session)",),
    ),
    Project(
        "Nuxt {}", "nuxt", {"nuxt": "4.5.2", "vue": "3.5.45", "node": NODE},
        (Mode("build", build="npx nuxt build", server="npx nuxt preview --port PORT", path="/"),),
        sources="app",
    ),
    Project(
        "Astro {}", "astro", {"astro": "7.3.5", "node": NODE}, (
            Mode("dev", server="npx astro dev --port PORT --host 127.0.0.1", path="/"),
            Mode("build", build="npx astro build"),
        ), sources="src",
    ),
    Project(
        "Angular {}", "angular", {
            "@angular/build": "22.2.7", "@angular/cli": "22.2.7", "@angular/common": "22.2.6",
            "@angular/compiler": "22.2.6", "@angular/compiler-cli": "22.2.6", "@angular/core": "22.2.6",
            "@angular/platform-browser": "22.2.6", "rxjs": "7.8.2", "tslib": "2.8.1", "typescript": "6.0.3",
            "node": NODE,
        }, (Mode("build", build="npx ng build"),),
        added=(COPY.format(folder="public/trainweb"),), copied="public/trainweb", copies_first=True, sources="src",
    ),
    Project(
        "no bundler, `<script type=\"module\">`", "plain", {},
        (Mode("static server", folder="."),),
        added=(COPY.format(folder="trainweb"),), copied="trainweb", public=".",
        edits=tuple((name, '"trainweb"', '"./trainweb/index.js"') for name in ("main.js", "ten.js")),
    ),
    _runtime("Node", "20.20.2", "npx node run.js"),
    _runtime("Node", "22.23.3", "npx node run.js"),
    _runtime("Node", "24.9.0", "npx node run.js"),
    _runtime("Deno", "2.9.6", DENO),
    _runtime("Bun", "1.4.5", "npx bun run.js"),
    _vitest("5.1.2", "31.0.1", {"node": NODE}),
    _vitest("4.1.12", "29.1.1"),
    Project(
        "Jest {}", "tests", {"jest": "30.5.2", "jest-environment-jsdom": "30.5.2"},
        (Mode("node", program="node --experimental-vm-modules node_modules/jest/bin/jest.js"),),
        public=".", label="jest",
    ),
)  # fmt: skip
